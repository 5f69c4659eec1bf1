"""The heads of transformers: what each reads out for one target, as columns of which a loss knows the target.

A head is one class. To add one, write its class beside :class:`TokenHead`: ``read`` takes the model's output apart,
``columns`` gives the values of the target, and a function of ``captum_iba.text.head_targets`` finds the target in a
text. Where a head reads single positions, the target goes with the text as one more row of integers beside its token
ids (:data:`TARGET_ROW`), so that it follows padding and deletion as they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from captum_iba.attr._model.nested import at_least_float32, wrapped_module
from captum_iba.text.encoding import EncodedText
from captum_iba.text.model_properties import class_labels, output_labels

TARGET_ROW = "target_row"
"""Name of the row with the target, beside the inputs of the model."""

LOG_ODDS_EPS = 1e-12
"""Least probability, and least distance from 1, of which log-odds are taken."""

START, END = 1, 2
"""Values of the row for a span: its first token, its last one, and their sum where that is one token."""


class Head:
    """The head of a sequence classifier, and what the other heads change.

    Attributes:
        kind (str): What the head is, for readers.
        loss (str): Loss of the columns, by its name in :mod:`captum_iba.attr.losses`.
        keywords (tuple of str): Arguments of ``explain`` that say what is explained, beside ``target``.
        labels (list of str): Names of the classes; empty where the head has none.
        n_columns (int): Number of columns.
    """

    kind: ClassVar[str] = "sequence classification"
    auto_class: ClassVar[str] = "AutoModelForSequenceClassification"
    keywords: ClassVar[tuple[str, ...]] = ()
    loss: str = "cross_entropy"

    def __init__(self, model: Any) -> None:
        self.labels = class_labels(model)
        self.n_columns = len(self.labels)
        self.multi_label = getattr(model.config, "problem_type", None) == "multi_label_classification"
        self.loss = "nll" if self.multi_label else "cross_entropy"

    def call(self, model: Any, inputs: Mapping[str, Tensor]) -> Any:
        """The model's output for its inputs, (B, T) each."""
        return model(**inputs)

    def read(self, output: Any) -> Tensor | None:
        """The values that the head gives, (B, ...); None where the output does not have them."""
        logits = getattr(output, "logits", None)
        return logits if isinstance(logits, Tensor) and logits.shape[1:] == (self.n_columns,) else None

    def columns(self, values: Tensor, row: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """What the loss takes, (B, :attr:`n_columns`): logits, from the values, and the row with the target, (B, T)."""
        return values

    def class_scores(self, columns: Tensor) -> Tensor:
        """The columns as :attr:`loss` takes them."""
        return F.logsigmoid(columns.float()) if self.multi_label else columns

    def probabilities(self, columns: Tensor) -> Tensor:
        """Probabilities of the columns, (B, :attr:`n_columns`)."""
        return columns.sigmoid() if self.multi_label else columns.softmax(-1)

    def precise_probabilities(self, columns: Tensor) -> Tensor:
        """:meth:`probabilities`, precise enough to tell decisions apart that are nearly certain."""
        # Apple's GPUs have no float64.
        return self.probabilities(columns.float() if columns.device.type == "mps" else columns.double())

    def trial(self, encoded: EncodedText) -> EncodedText:
        """A text with some target, to try the model."""
        return encoded

    def for_gradients(self, encoded: EncodedText) -> EncodedText:
        """A text as methods by gradients take it."""
        return encoded

    @property
    def has_classes(self) -> bool:
        """Whether the columns are classes of a text."""
        return type(self) is Head

    @property
    def has_target_words(self) -> bool:
        """Whether what is explained are tokens of the text, which the head reads."""
        return isinstance(self, (TokenHead, AnswerHead))


class LogitHead(Head):
    """One logit of a label that applies or does not (a multi-label head of one label)."""

    kind = "one label"

    def __init__(self, model: Any) -> None:
        (label,) = output_labels(model)
        self.labels = [f"not {label}", label]
        self.n_columns, self.multi_label = 2, False

    def read(self, output: Any) -> Tensor | None:
        """The logit, (B, 1)."""
        logits = getattr(output, "logits", None)
        return logits if isinstance(logits, Tensor) and logits.shape[1:] == (1,) else None

    def columns(self, values: Tensor, row: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """Logits whose softmax is the sigmoid and its complement: cross-entropy is then binary cross-entropy."""
        return torch.cat([torch.zeros_like(values), values], 1)

    @property
    def has_classes(self) -> bool:
        """It has the class that applies, and its opposite."""
        return True


class ValueHead(Head):
    r"""Outputs that are quantities (a regression): how near each stays to its prediction :math:`y`.

    The columns are :math:`-(y' - y)^2 / 2 s^2`, for each output one. The scale :math:`s` is the standard deviation of
    the output over neutral texts, or the ``tolerance`` of ``explain``.
    """

    kind = "regression"
    keywords = ("tolerance",)
    loss = "negative_output"

    def __init__(self, model: Any) -> None:
        self.labels = output_labels(model)
        self.n_columns, self.multi_label = len(self.labels), False
        self.scale: Tensor | None = None

    def columns(self, values: Tensor, row: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """The squared distances, of outputs (B, outputs); the row holds the prediction of the one that is explained."""
        wide = at_least_float32(values)
        if row is None:
            return wide
        scale = torch.ones(self.n_columns) if self.scale is None else self.scale
        return -0.5 * ((wide - row[:, :1].to(wide)) / scale.to(wide)).square()

    def probabilities(self, columns: Tensor) -> Tensor:
        """Closeness to the prediction: 1 at it, and less than half from 1.2 scales away on."""
        return columns.clamp_max(0).exp()

    def trial(self, encoded: EncodedText) -> EncodedText:
        """A prediction of 0."""
        return with_row(encoded, [0.0] * len(encoded))

    def for_gradients(self, encoded: EncodedText) -> EncodedText:
        """Without the prediction, at which its closeness has no gradient: the columns are the outputs then."""
        return replace(encoded, inputs={name: row for name, row in encoded.inputs.items() if name != TARGET_ROW})


class _TargetHead(Head):
    """A head whose columns are "anything else" and "the target"."""

    def __init__(self, model: Any) -> None:
        self.labels = []
        self.n_columns, self.multi_label = 2, False

    def trial(self, encoded: EncodedText) -> EncodedText:
        """The first class of a token in the middle."""
        return with_row(encoded, [int(i == len(encoded) // 2) for i in range(len(encoded))])


class TokenHead(_TargetHead):
    """Classes of every token. The row has the class of the tokens that are explained, from 1, and 0 elsewhere.

    The target's probability is that of all these classes together, their product.
    """

    kind = "token classification"
    auto_class = "AutoModelForTokenClassification"
    keywords: ClassVar[tuple[str, ...]] = ("word", "token", "entity")

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.labels = class_labels(model)

    def read(self, output: Any) -> Tensor | None:
        """Logits, (B, T, classes)."""
        logits = getattr(output, "logits", None)
        fits = isinstance(logits, Tensor) and logits.ndim == 3 and self._fits(logits.shape[-1])
        return logits if fits else None

    def _fits(self, classes: int) -> bool:
        return classes == len(self.labels)

    def columns(self, values: Tensor, row: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """Logarithms of the probabilities that the target is not, and is, given."""
        if row is None:
            row = torch.zeros(values.shape[:2], dtype=torch.long, device=values.device)
        texts, positions = row.nonzero(as_tuple=True)
        missing = _minus_log_probability(values[texts, positions], row[texts, positions].long() - 1)
        return _two_columns(missing.new_zeros(len(row)).index_add(0, texts, missing))


class MaskHead(TokenHead):
    """The vocabulary at a masked token: the row has its number there, from 1."""

    kind = "masked language modeling"
    auto_class = "AutoModelForMaskedLM"
    keywords = ()

    def __init__(self, model: Any) -> None:
        _TargetHead.__init__(self, model)
        self._n_words = getattr(model.config.get_text_config(), "vocab_size", None)

    def _fits(self, classes: int) -> bool:
        return self._n_words in (None, classes)


class AnswerHead(_TargetHead):
    """Start and end of an answer. The row has :data:`START` and :data:`END`.

    The target's probability is that of the start times that of the end.
    """

    kind = "question answering"
    auto_class = "AutoModelForQuestionAnswering"

    def read(self, output: Any) -> Tensor | None:
        """Logits of starts and ends, (B, T, 2)."""
        ends = [getattr(output, name, None) for name in ("start_logits", "end_logits")]
        if not all(isinstance(logits, Tensor) and logits.ndim == 2 for logits in ends):
            return None
        return torch.stack(ends, -1)  # type: ignore[arg-type]

    def columns(self, values: Tensor, row: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """Logarithms of the probabilities that the target is not, and is, the answer; padding is no answer."""
        wide = at_least_float32(values)
        if attention_mask is not None:
            wide = wide.masked_fill(attention_mask[..., None] == 0, float("-inf"))
        missing = wide.new_zeros(len(wide))
        for number, bit in enumerate((START, END)) if row is not None else ():
            texts, positions = (row.long() & bit).nonzero(as_tuple=True)  # type: ignore[union-attr]
            missing = missing.index_add(0, texts, _minus_log_probability(wide[texts, :, number], positions))
        return _two_columns(missing)

    def trial(self, encoded: EncodedText) -> EncodedText:
        """The first token as the answer."""
        return with_row(encoded, [START + END] + [0] * (len(encoded) - 1))


class ChoiceHead(_TargetHead):
    """One of several choices. The text has the choice that is explained; the others stay as they are.

    The row has, at every token, the logarithm of the sum of the exponentials of their logits.
    """

    kind = "multiple choice"
    auto_class = "AutoModelForMultipleChoice"
    keywords = ("choices",)

    def call(self, model: Any, inputs: Mapping[str, Tensor]) -> Any:
        """The output for one choice per text: transformers takes (B, choices, T)."""
        return model(**{name: tensor[:, None] for name, tensor in inputs.items()})

    def read(self, output: Any) -> Tensor | None:
        """The logit of the choice, (B, 1)."""
        logits = getattr(output, "logits", None)
        return logits if isinstance(logits, Tensor) and logits.shape[1:] == (1,) else None

    def columns(self, values: Tensor, row: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """Logits of the other choices, as one, and of this one."""
        others = torch.zeros_like(values) if row is None else row[:, :1].to(values)
        return torch.cat([others, values], 1)

    def trial(self, encoded: EncodedText) -> EncodedText:
        """One other choice, of logit 0."""
        return with_row(encoded, [0.0] * len(encoded))


_BY_NAME: dict[str, type[Head]] = {
    "ForTokenClassification": TokenHead,
    "ForQuestionAnswering": AnswerHead,
    "ForMaskedLM": MaskHead,
    "ForMultipleChoice": ChoiceHead,
}

_KINDS: tuple[type[Head], ...] = (Head, LogitHead, ValueHead, *_BY_NAME.values())

KINDS = ", ".join(head.kind for head in _KINDS)
"""The heads that there are, for errors."""


def head_of_architectures(architectures: Sequence[str] | None) -> type[Head]:
    """The class of the head of a configuration's ``architectures``; that of sequence classifiers where none is known.

    Examples::

        >>> head_of_architectures(["BertForTokenClassification"]).kind
        'token classification'
    """
    for name in architectures or ():
        for part, head in _BY_NAME.items():
            if part in name:
                return head
    return Head


def find_head(model: Any) -> Head:
    """The head of a model, by the name of its class; a sequence classifier of one output by its ``problem_type``."""
    found = head_of_architectures([type(model).__name__, type(wrapped_module(model)).__name__])
    if found is not Head:
        return found(model)
    config = getattr(model, "config", None)
    problem, count = getattr(config, "problem_type", None), getattr(config, "num_labels", None)
    if count == 1 and problem == "multi_label_classification":
        return LogitHead(model)
    if isinstance(count, int) and (problem == "regression" or (count == 1 and problem is None)):
        return ValueHead(model)
    return Head(model)


def with_row(encoded: EncodedText, row: Sequence[float]) -> EncodedText:
    """A text with its target as one more row of its inputs."""
    return replace(encoded, inputs={**encoded.inputs, TARGET_ROW: tuple(row)})


def _minus_log_probability(logits: Tensor, classes: Tensor) -> Tensor:
    """Minus the logarithms of probabilities, (K,), of logits, (K, C): precise, too, where a probability is nearly 1."""
    wide = at_least_float32(logits)
    others = wide.scatter(1, classes[:, None], float("-inf")).logsumexp(1)
    return F.softplus(others - wide.gather(1, classes[:, None])[:, 0])


def _two_columns(missing: Tensor) -> Tensor:
    """:math:`\\log(1 - p)` and :math:`\\log p` of :math:`-\\log p`; their softmax is :math:`1 - p` and :math:`p`."""
    positive = missing.clamp_min(torch.finfo(missing.dtype).tiny)
    return torch.stack([(-torch.expm1(-positive)).log(), -missing], 1)
