"""A model of ``transformers`` with a head, and its tokenizer, as attribution needs them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from captum_iba._explain.model import accelerate_hooks
from captum_iba._explain.pretrained import load_pretrained
from captum_iba._warnings import warn_user
from captum_iba.attr._model.guard import ONE_AT_A_TIME, ModuleGuard
from captum_iba.attr.losses import are_probabilities
from captum_iba.text.arguments import batches_by_length
from captum_iba.text.encoding import EncodedText, check_tokenizer, encode, pad
from captum_iba.text.heads import KINDS, TARGET_ROW, find_head, head_of_architectures
from captum_iba.text.model_properties import (
    count_positions,
    input_names,
    memory_offsets,
    padding_id,
    place_in_memory,
    refusal,
    token_limit,
    window_size,
)

# Texts that tell probabilities from logits; those of the first one may sum to 1 by coincidence.
_TRIAL_TEXTS = ("a film", "the end", "no", "1, 2, 3!")

# Numbers of padding tokens that are tried on a short text: an odd and an even length, for models that pool.
_PADDING_LENGTHS = (1, 6)


class NotAClassifierError(ValueError):
    """The output of a model is not one value per text and class."""


class Classifier:
    """A sequence classifier, or a model with another head, and its tokenizer: texts to tensors to logits.

    Args:
        model (PreTrainedModel): A model of ``transformers`` with a head of :mod:`captum_iba.text.heads`.
        tokenizer (PreTrainedTokenizerBase): Its tokenizer, a fast one.
        max_length (int, optional): Number of tokens that texts are truncated to. Default: the largest number that
            model and tokenizer allow.

    Attributes:
        head (Head): What the model's output is, and how a target is read out of it.
        labels (list of str): Names of the classes, in the order of the outputs; empty where the head has none.
        max_length (int): Number of tokens that texts are truncated to.
        pad_id (int): Id of the padding token.
        multi_label (bool): Whether every class has a probability of its own (sigmoid), and not one in
            competition with the others (softmax).
        gives_probabilities (bool): Whether the model gives probabilities (of a softmax) in place of logits, which is
            tried with short texts. Then :meth:`logits` are their logarithms.
        padding_matters (bool): Whether padding changes the output for a text, which is tried with a short text (XLNet
            and others without an attention mask, or that ignore it). Then only texts of equal length share a pass.
            Padding to more tokens is tried when it is needed, by :meth:`padding_matters_up_to`.
        ends_in_padding (bool): Whether the tokenizer ends texts in the token that the configuration calls padding.
        method_state (dict): Objects that methods keep between the chunks of a dataset; not pickled.

    Raises:
        ValueError: Not a classifier of two or more classes (a short text runs to find out), a slow tokenizer, or no
            padding token.

    Examples::

        >>> classifier = Classifier(*load_classifier("path/to/classifier"))
        >>> encoded = classifier.encode(["A wonderful film."], [None])
        >>> classifier.probabilities(classifier.tensors(encoded)).shape
        torch.Size([1, 2])
    """

    def __init__(self, model: Any, tokenizer: Any, max_length: int | None = None) -> None:
        check_tokenizer(tokenizer)
        self.model = model
        self.tokenizer = tokenizer
        self.head = find_head(model)
        self.labels = self.head.labels
        self.max_length = token_limit(model, tokenizer, max_length)
        self.multi_label = self.head.multi_label
        self.pad_id = padding_id(model, tokenizer)
        self.input_names = input_names(model, tokenizer)
        self.method_state: dict[Any, Any] = {}
        self.gives_probabilities = False
        self.ends_in_padding = self._last_token_is_padding()
        self._unchanged_up_to = 0
        self.padding_matters = self._check_outputs()
        if self.gives_probabilities:
            warn_user(
                f"model: {type(model).__name__} gives probabilities, expected logits; their logarithms are taken as "
                "logits"
            )

    def __getstate__(self) -> dict[str, Any]:
        # Where the weights lie in memory can change the last digit.
        return {**vars(self), "method_state": {}, "_offsets": memory_offsets(self.model)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        offsets = state.pop("_offsets")
        vars(self).update(state)
        place_in_memory(self.model, offsets)

    @property
    def device(self) -> torch.device:
        """Device of the model's inputs; where accelerate offloads the weights, the one that passes run on."""
        device: torch.device = next(iter(self.model.parameters())).device
        if device.type != "meta":
            return device
        for module in self.model.modules():
            for hook in accelerate_hooks(module):
                if (execution := getattr(hook, "execution_device", None)) is not None:
                    return torch.device("cuda", execution) if isinstance(execution, int) else torch.device(execution)
        return device

    @property
    def name(self) -> str:
        """Folder or name that the model was loaded from, or its class."""
        return str(getattr(self.model, "name_or_path", "") or type(self.model).__name__)

    def encode(self, texts: Sequence[str], pairs: Sequence[str | None]) -> list[EncodedText]:
        """Texts as tokens, truncated to :attr:`max_length`.

        Args:
            texts (sequence of str): The texts.
            pairs (sequence of str or None): The second text of each, or None.

        Returns:
            list of EncodedText: One per text.

        Raises:
            ValueError: A text, or pair, of special tokens only; the message names it.
        """
        encoded_texts = []
        for i, (text, pair) in enumerate(zip(texts, pairs, strict=True)):
            encoded = encode(self.tokenizer, text, pair, self.max_length, self.input_names)
            if all(word is None for word in encoded.words):
                raise ValueError(
                    f"texts[{i}] is {text!r}, which has nothing to attribute: only special tokens in at most "
                    f"{self.max_length} tokens, expected other tokens"
                )
            encoded_texts.append(encoded)
        return encoded_texts

    def tensors(self, encoded: Sequence[EncodedText], whole_windows: bool = False) -> dict[str, Tensor]:
        """The model's inputs, padded on the right, ``input_ids`` first.

        Args:
            encoded (sequence of EncodedText): The texts.
            whole_windows (bool): Whether to add the padding that a model of attention windows or blocks (Longformer,
                BigBird) adds itself otherwise, so that its layers have the positions of the inputs. Default: False.

        Returns:
            dict of Tensor: Integers, (B, T), by the names of the model's inputs.
        """
        multiple = window_size(self.model, max(map(len, encoded))) if whole_windows else 1
        return pad(encoded, self.pad_id, self.device, multiple)

    def short_text(self) -> dict[str, Tensor] | None:
        """Inputs of a text of a few tokens, to try the model; None where the tokenizer gives no token."""
        encoded = self._short_encoded()
        return self.tensors([self.head.trial(encoded)], whole_windows=True) if len(encoded) else None

    def batches(self, lengths: Sequence[int], batch_size: int) -> list[list[int]]:
        """Indices of texts that share a pass, as :func:`captum_iba.text.arguments.batches_by_length`.

        Where padding to the longest of them matters, only texts of equal length share one.
        """
        equal = len(set(lengths)) > 1 and self.padding_matters_up_to(max(lengths))
        return batches_by_length(lengths, batch_size, equal)

    def padding_matters_up_to(self, length: int) -> bool:
        """Whether padding to so many tokens changes the output for texts of 16, 32, ... tokens.

        Some models compute otherwise from a length on: BigBird turns to block-sparse attention, and rotary embeddings
        of ``longrope`` to their long factors. The largest length without a change is remembered.
        """
        if self.padding_matters or length <= self._unchanged_up_to or self.short_text() is None:
            return self.padding_matters
        longer = " ".join(_TRIAL_TEXTS) + " "
        for size in (2**power for power in range(4, 31) if 2**power < length):
            text = encode(self.tokenizer, longer * size, None, size, self.input_names)
            if len(text) and self._changed_by_padding(length - len(text), text):
                return True
        self._unchanged_up_to = length
        return False

    def _short_encoded(self, text: str = _TRIAL_TEXTS[0]) -> EncodedText:
        return encode(self.tokenizer, text, None, count_positions(self.model), self.input_names)

    def _last_token_is_padding(self) -> bool:
        ids = self._short_encoded().inputs["input_ids"]
        return bool(ids) and ids[-1] == self.model.config.get_text_config().pad_token_id

    def _check_outputs(self) -> bool:
        """Whether padding matters to the model; ValueError if it does not give one value per class of a short text."""
        if self.short_text() is None:
            return True
        try:
            with self.with_padding_token():
                self.gives_probabilities = self._outputs_probabilities()
                return any(self._changed_by_padding(count) for count in _PADDING_LENGTHS)
        except (NotAClassifierError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ValueError(refusal(self.model, None, (1, self.head.n_columns), error)) from error

    def _outputs_probabilities(self) -> bool:
        if not self.head.has_classes:
            return False
        encoded = filter(len, map(self._short_encoded, _TRIAL_TEXTS))
        trials = (self._guarded_logits(self.tensors([text], whole_windows=True)) for text in encoded)
        return all(are_probabilities(output) for output in trials) and not self.multi_label

    def _changed_by_padding(self, count: int, encoded: EncodedText | None = None) -> bool:
        encoded = self.head.trial(self._short_encoded() if encoded is None else encoded)
        inputs = self.tensors([encoded])
        count = max(0, min(count, count_positions(self.model) - len(encoded)))
        padded = {name: F.pad(tensor, (0, count), value=0) for name, tensor in inputs.items()}
        padded["input_ids"][:, len(encoded) :] = self.pad_id
        unpadded_logits = self._guarded_logits(inputs)
        try:
            padded_logits = self._guarded_logits(padded)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # with padding the model does not run at all
            return True
        # Passes of other lengths differ by rounding.
        tolerance = torch.finfo(unpadded_logits.dtype).eps ** 0.7 * max(1.0, float(unpadded_logits.abs().max()))
        return not bool((unpadded_logits.float() - padded_logits.float()).abs().max() <= tolerance)

    def logits(self, input_ids: Tensor, *others: Tensor) -> Tensor:
        """The model's output for the values of :meth:`tensors`.

        Tokens of a text are never read as padding, even if they are the padding token: decoders look for it to find
        where a text ends. The exception is :attr:`ends_in_padding`, where the model reads its inputs as they are.

        Args:
            input_ids (Tensor): Token ids, (B, T).
            *others (Tensor): The model's other inputs, (B, T).

        Returns:
            Tensor: Logits, (B, C); log-probabilities if :attr:`gives_probabilities`. Another head than a sequence
            classifier's gives its own columns.

        Raises:
            ValueError: The output does not have this shape, no token is left to pad with, or a model that gave
                probabilities gives other values.
        """
        values, inputs, row = self._read(input_ids, *others)
        logits = self.head.columns(values, row, inputs.get("attention_mask"))
        if not self.gives_probabilities:
            return logits
        if bool(((logits < -1e-3) | (logits > 1 + 1e-2)).any()):
            name = type(self.model).__name__
            raise ValueError(f"model: the outputs of {name} are probabilities for short texts, but not for these texts")
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return wide.clamp_min(torch.finfo(wide.dtype).tiny).log()

    def values(self, encoded: Sequence[EncodedText], batch_size: int) -> Iterator[tuple[int, Tensor]]:
        """Number of each text and the values that the head gives for it without padding, on the CPU, float32."""
        with self.with_padding_token():
            for batch in self.batches([len(text) for text in encoded], batch_size):
                with ModuleGuard(self.model), torch.no_grad():
                    values = self._read(*self.tensors([encoded[i] for i in batch], whole_windows=True).values())[0]
                for i, of_text in zip(batch, values, strict=True):
                    yield i, (of_text[: len(encoded[i])] if values.ndim == 3 else of_text).float().cpu()

    def _read(self, input_ids: Tensor, *others: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """The values that the head gives, (B, ...), the model's inputs, and the row of the target, if there is one."""
        names = self.input_names if len(others) < len(self.input_names) else (*self.input_names, TARGET_ROW)
        inputs = dict(zip(names, (input_ids, *others), strict=True))
        row = inputs.pop(TARGET_ROW, None)
        with ExitStack() as stack:
            if (unused_id := self._unused_padding_id(inputs)) is not None:
                inputs["input_ids"] = input_ids.masked_fill(inputs["attention_mask"] == 0, unused_id)
                stack.enter_context(self._configured_padding(unused_id))
            stack.enter_context(self._same_attention())
            output = self.head.call(self.model, inputs)
        if (values := self.head.read(output)) is None:
            raise NotAClassifierError(refusal(self.model, output, (len(input_ids), self.head.n_columns)))
        return values, inputs, row

    def class_scores(self, input_ids: Tensor, *others: Tensor) -> Tensor:
        """Input of the loss for the values of :meth:`tensors`: logits, or log-probabilities if :attr:`multi_label`."""
        return self.head.class_scores(self.logits(input_ids, *others))

    def probabilities(self, inputs: dict[str, Tensor]) -> Tensor:
        """Probabilities of the classes, (B, C), on the CPU."""
        return self.head.probabilities(self._guarded_logits(inputs).float()).cpu()

    def _guarded_logits(self, inputs: dict[str, Tensor]) -> Tensor:
        with ModuleGuard(self.model), torch.no_grad():
            return self.logits(*inputs.values())

    def _unused_padding_id(self, inputs: dict[str, Tensor]) -> int | None:
        """A token id to pad with that no text of a pass holds; None where the padding token itself is one."""
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        if self.ends_in_padding or mask is None or not bool(((ids == self.pad_id) & (mask != 0)).any()):
            return None
        used = set(ids.flatten().tolist())
        special = {*self.tokenizer.all_special_ids, getattr(self.model.config.get_text_config(), "eos_token_id", None)}
        free = (number for number in range(len(self.tokenizer)) if number not in used)
        candidates = sorted(islice(free, len(special) + 1), key=lambda number: number in special)
        if candidates:
            return candidates[0]
        if bool((mask != 0).all()):
            return -1
        raise ValueError(
            f"batch_size is {len(ids)}, and the texts of a pass hold every token of the tokenizer, "
            f"{len(self.tokenizer)}, the padding token among them, so that none is left to pad with; expected fewer "
            "texts per pass"
        )

    @contextmanager
    def with_padding_token(self) -> Iterator[None]:
        """Context in which the model's configuration names the padding token, for one thread at a time.

        Decoders refuse batches, of noise samples too, without it.
        """
        with self._configured_padding(self.pad_id), self._same_attention():
            yield

    @contextmanager
    def _same_attention(self) -> Iterator[None]:
        """Context after which BigBird, which turns to full attention for good at the first short text, has its own."""
        modules = self.model.modules() if hasattr(self.model.config, "attention_type") else ()
        attention = [(module, module.attention_type) for module in modules if hasattr(module, "set_attention_type")]
        try:
            yield
        finally:
            for module, attention_type in attention:
                module.set_attention_type(attention_type)

    @contextmanager
    def _configured_padding(self, pad_id: int) -> Iterator[None]:
        with ONE_AT_A_TIME:
            config = self.model.config.get_text_config()
            before = config.pad_token_id
            config.pad_token_id = pad_id
            try:
                yield
            finally:
                config.pad_token_id = before


def predicted_classes(classifier: Classifier, encoded: Sequence[EncodedText], batch_size: int) -> list[int]:
    """The most probable class of each text, from passes of at most ``batch_size`` texts."""
    classes: dict[int, int] = {}
    with classifier.with_padding_token():
        for batch in classifier.batches([len(text) for text in encoded], batch_size):
            probabilities = classifier.probabilities(classifier.tensors([encoded[i] for i in batch]))
            classes.update(zip(batch, probabilities.argmax(-1).tolist(), strict=True))
    return [classes[i] for i in range(len(encoded))]


def load_classifier(
    name_or_path: str | os.PathLike[str],
    device: str | int | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Any, Any]:
    """Load a classifier, or a model with another head, and its tokenizer, from a folder or the Hugging Face hub.

    The configuration's ``architectures`` say which head it has.

    Args:
        name_or_path (str or path): A folder, or a name on the hub.
        device (str, int, torch.device or None): Device of the model; a number is a CUDA device. Default: the CPU.
        dtype (torch.dtype): Precision of the weights. Default: ``torch.float32``.

    Returns:
        tuple: The model, in evaluation mode, and the tokenizer.

    Raises:
        ValueError: The checkpoint lacks weights of a classifier, its head for example, or has no tokenizer; or torch
            does not find the device.
        OSError: There is no such folder or name.
    """
    import transformers

    name = os.fspath(name_or_path)
    head = head_of_architectures(_architectures(name))
    model, tokenizer, missing = load_model(getattr(transformers, head.auto_class), name, device, dtype=dtype)
    if missing:
        raise ValueError(
            f"model: {name} is not a trained classifier, its file lacks {', '.join(missing[:3])}; "
            f"expected a model that was fine-tuned for {KINDS} (GenerationExplainer and `captum-iba explain-response` "
            "explain what language models generate)."
        )
    return model, tokenizer


def require_classes(classifier: Classifier, what: str) -> None:
    """ValueError unless the model is a sequence classifier."""
    if not classifier.head.has_classes:
        raise ValueError(
            f"model: {what} needs a sequence classifier, got a model of {classifier.head.kind}, which "
            "TextExplainer.explain and `captum-iba explain` explain; captum_iba.compare.compare_texts compares methods"
        )


def _architectures(name: str) -> list[str]:
    """``architectures`` of a configuration, of an adapter its task; empty where there is none."""
    from transformers import AutoConfig

    try:
        if (adapter := Path(name) / "adapter_config.json").is_file():
            task = json.loads(adapter.read_text(encoding="utf-8")).get("task_type")
            return {"TOKEN_CLS": ["ForTokenClassification"], "QUESTION_ANS": ["ForQuestionAnswering"]}.get(task, [])
        return list(AutoConfig.from_pretrained(name).architectures or ())
    except Exception:  # loading the model says what is wrong
        return []


def load_model(
    auto_class: Any, name: str, device: str | int | torch.device | None = None, **options: Any
) -> tuple[Any, Any, list[str]]:
    """A model in evaluation mode, its tokenizer, and the names of weights that its file lacks.

    Errors as of :func:`load_classifier`.
    """
    from transformers import AutoTokenizer

    try:
        model, tokenizer, missing = load_pretrained(auto_class, AutoTokenizer, name, device, **options)
    except ValueError as error:
        if not str(error).startswith("Unrecognized configuration class"):
            raise
        held = ", ".join(_architectures(name)) or "a model of another kind"
        raise ValueError(
            f"model: {name} holds {held}, expected a model of texts (ImageExplainer, `captum-iba explain-image` "
            "and `compare-images` are for classifiers of images)"
        ) from error
    # Where there are no files of a tokenizer, transformers makes one that knows no words.
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ValueError(f"tokenizer: {name} has none, or none that knows a word; save it beside the model.")
    return model, tokenizer, missing
