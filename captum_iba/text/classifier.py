"""A sequence classifier of ``transformers`` and its tokenizer, as attribution needs them."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captum_iba.attr._model.guard import ONE_AT_A_TIME, ModuleGuard
from captum_iba.text import alignment
from captum_iba.text.encoding import EncodedText, check_tokenizer, encode, pad
from captum_iba.text.heads import refusal
from captum_iba.text.inputs import batches_by_length

# Tokenizers without a limit of their own say "very large integer".
_NO_LIMIT = 10**6

# How many padding tokens a short text gets to see whether they matter: an odd and an even length, for models that pool.
_PADDING_TRIED = (1, 6)


class NotAClassifierError(ValueError):
    """The output of a model is not one number per text and class."""


class Classifier:
    """A model and its tokenizer: texts to tensors to logits.

    Args:
        model (PreTrainedModel): A sequence classifier.
        tokenizer (PreTrainedTokenizerBase): A fast tokenizer.
        max_length (int or None): Where texts are cut, in tokens; None takes what both allow. Default: None.

    Attributes:
        labels (list of str): The names of the classes, in the order of the outputs.
        max_length (int): Where texts are cut.
        pad_id (int): The token that fills up shorter texts.
        multi_label (bool): Whether every class has a probability of its own (sigmoid), and not one in
            competition with the others (softmax).
        padding_matters (bool): Whether padding changes what the model gives for a text, as a short text shows (XLNet
            and others without an attention mask, or that look past it). Then only texts of equal length share a pass.

    Raises:
        ValueError: Not a classifier of two or more classes (a short text runs to find out), a slow tokenizer, or no
            padding token.
    """

    def __init__(self, model: Any, tokenizer: Any, max_length: int | None = None) -> None:
        check_tokenizer(tokenizer)
        self.model = model
        self.tokenizer = tokenizer
        self.labels = _labels(model)
        self.max_length = _greatest_length(model, tokenizer, max_length)
        self.multi_label = getattr(model.config, "problem_type", None) == "multi_label_classification"
        self.pad_id = _padding_id(model, tokenizer)
        self._names = _input_names(model, tokenizer)
        self.places: dict[Any, Any] = {}
        """What method ``iba`` keeps between the parts of a data set."""
        self.own_end = self._ends_in_padding()
        self.padding_matters = self._try_out()

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: where the weights lie in memory is told, for it can change the last digit.

        It begins without what was kept.
        """
        return {**vars(self), "places": {}, "_offsets": alignment.offsets(self.model)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """There, the weights are laid as they are here."""
        wanted = state.pop("_offsets")
        vars(self).update(state)
        alignment.place(self.model, wanted)

    @property
    def device(self) -> torch.device:
        """Where the model takes its inputs; that of a pass where accelerate keeps the weights elsewhere."""
        device: torch.device = next(iter(self.model.parameters())).device
        if device.type != "meta":
            return device
        for module in self.model.modules():
            hook = getattr(module, "_hf_hook", None)
            for one in getattr(hook, "hooks", (hook,)):
                if (where := getattr(one, "execution_device", None)) is not None:
                    return torch.device("cuda", where) if isinstance(where, int) else torch.device(where)
        return device

    @property
    def name(self) -> str:
        """The folder or name that the model was loaded from, or its class."""
        return str(getattr(self.model, "name_or_path", "") or type(self.model).__name__)

    def encode(self, texts: Sequence[str], pairs: Sequence[str | None]) -> list[EncodedText]:
        """Texts as tokens, cut at :attr:`max_length`.

        Raises:
            ValueError: A text, or second text, of special tokens only; says which.
        """
        found = []
        for i, (text, pair) in enumerate(zip(texts, pairs, strict=True)):
            encoded = encode(self.tokenizer, text, pair, self.max_length, self._names)
            if all(word is None for word in encoded.words):
                raise ValueError(
                    f"texts[{i}]: nothing to attribute, {text!r} gives no token but special ones "
                    f"(at most {self.max_length} tokens)."
                )
            found.append(encoded)
        return found

    def tensors(self, encoded: Sequence[EncodedText], whole_windows: bool = False) -> dict[str, Tensor]:
        """The model's inputs, padded on the right, ``input_ids`` first.

        Args:
            encoded (sequence of EncodedText): The texts.
            whole_windows (bool): With the padding that a model of attention windows or blocks (Longformer, BigBird)
                would add inside, so that its layers have the positions of the inputs. Default: False.
        """
        multiple = _window(self.model, max(map(len, encoded))) if whole_windows else 1
        return pad(encoded, self.pad_id, self.device, multiple)

    def short_text(self) -> dict[str, Tensor] | None:
        """The inputs of a text of a few tokens, to try the model out; None where the tokenizer makes nothing of it."""
        encoded = encode(self.tokenizer, "a film", None, _positions(self.model), self._names)
        return self.tensors([encoded], whole_windows=True) if len(encoded) else None

    def batches(self, lengths: Sequence[int], batch_size: int) -> list[list[int]]:
        """The numbers of texts that share a pass, by their lengths: as ``batches_by_length``.

        Where :attr:`padding_matters`, only texts of equal length do.
        """
        return batches_by_length(lengths, batch_size, self.padding_matters)

    def _ends_in_padding(self) -> bool:
        """Whether the tokenizer ends texts in what the configuration calls padding: the model looks before it."""
        encoded = encode(self.tokenizer, "a film", None, _positions(self.model), self._names)
        ids = encoded.inputs["input_ids"]
        return bool(ids) and ids[-1] == self.model.config.get_text_config().pad_token_id

    def _try_out(self) -> bool:
        """Whether padding matters to the model.

        Raises:
            ValueError: It does not give a number per class for a short text.
        """
        if (inputs := self.short_text()) is None:
            return True
        try:
            with self.padding_known():
                self._guarded_logits(inputs)
                return any(self._changed_by_padding(count) for count in _PADDING_TRIED)
        except NotAClassifierError:
            raise
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise ValueError(refusal(self.model, None, (1, len(self.labels)), error)) from error

    def _changed_by_padding(self, count: int) -> bool:
        encoded = encode(self.tokenizer, "a film", None, _positions(self.model), self._names)
        inputs = self.tensors([encoded])
        count = min(count, _positions(self.model) - len(encoded))
        padded = {name: F.pad(one, (0, count), value=0) for name, one in inputs.items()}
        padded["input_ids"][:, len(encoded) :] = self.pad_id
        alone = self._guarded_logits(inputs)
        try:
            beside = self._guarded_logits(padded)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # with padding the model does not run at all
            return True
        # Passes of other lengths differ by rounding.
        tolerance = torch.finfo(alone.dtype).eps ** 0.7 * max(1.0, float(alone.abs().max()))
        return not bool((alone.float() - beside.float()).abs().max() <= tolerance)

    def logits(self, input_ids: Tensor, *others: Tensor) -> Tensor:
        """The model's output for the values of :meth:`tensors`.

        A text's own tokens are not read as padding, also where they are the padding token's: decoders look for it
        to find where a text ends. Only where the tokenizer itself ends texts so, and the configuration says that it
        is padding, the model does with it what it always does.

        Raises:
            ValueError: The output is not one number per text and class, or no token is left to pad with.
        """
        inputs = dict(zip(self._names, (input_ids, *others), strict=True))
        with ExitStack() as stack:
            if (stand_in := self._padding_in_place_of_own(inputs)) is not None:
                inputs["input_ids"] = input_ids.masked_fill(inputs["attention_mask"] == 0, stand_in)
                stack.enter_context(self._named_padding(stand_in))
            output = self.model(**inputs)
        logits = getattr(output, "logits", None)
        expected = (len(input_ids), len(self.labels))
        if not isinstance(logits, Tensor) or logits.shape != expected:
            raise NotAClassifierError(refusal(self.model, output, expected))
        return logits

    def competing(self, input_ids: Tensor, *others: Tensor) -> Tensor:
        """What a loss takes for the values of :meth:`tensors`: logits, or log-probabilities if :attr:`multi_label`."""
        logits = self.logits(input_ids, *others)
        return F.logsigmoid(logits.float()) if self.multi_label else logits

    def probabilities(self, inputs: dict[str, Tensor]) -> Tensor:
        """Probability of every class, (B, C), on the CPU."""
        output = self._guarded_logits(inputs).float()
        return (output.sigmoid() if self.multi_label else output.softmax(-1)).cpu()

    def _guarded_logits(self, inputs: dict[str, Tensor]) -> Tensor:
        with ModuleGuard() as guard, torch.no_grad():
            for module in self.model.modules():
                guard.take(module)
            return self.logits(*inputs.values())

    def _padding_in_place_of_own(self, inputs: dict[str, Tensor]) -> int | None:
        """A token that no text of a pass holds, to pad with; None where the padding token itself is such a one."""
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        if self.own_end or mask is None or not bool(((ids == self.pad_id) & (mask != 0)).any()):
            return None
        taken = set(ids.flatten().tolist())
        special = {*self.tokenizer.all_special_ids, getattr(self.model.config.get_text_config(), "eos_token_id", None)}
        free = (number for number in range(len(self.tokenizer)) if number not in taken)
        found = sorted(islice(free, len(special) + 1), key=lambda number: number in special)
        if found:
            return found[0]
        if bool((mask != 0).all()):
            return -1
        raise ValueError(
            f"batch_size: the texts of a pass hold every token of the tokenizer, {len(self.tokenizer)}, the padding "
            "token among them, and none is left to pad with; expected fewer texts at a time."
        )

    @contextmanager
    def padding_known(self) -> Iterator[None]:
        """Decoders refuse batches, of noise draws too, unless their configuration names the padding token.

        The attention of BigBird, which turns to full for good at the first short text, is put back, too. One thread at
        a time.
        """
        with ONE_AT_A_TIME, self._named_padding(self.pad_id):
            attention = [(m, m.attention_type) for m in self.model.modules() if hasattr(m, "set_attention_type")]
            try:
                yield
            finally:
                for module, kind in attention:
                    module.set_attention_type(kind)

    @contextmanager
    def _named_padding(self, number: int) -> Iterator[None]:
        """With a token as padding in the model's configuration."""
        with ONE_AT_A_TIME:
            config = self.model.config.get_text_config()
            before = config.pad_token_id
            config.pad_token_id = number
            try:
                yield
            finally:
                config.pad_token_id = before


def load_classifier(
    name_or_path: str | os.PathLike[str],
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Any, Any]:
    """A classifier and its tokenizer, from a folder or the Hugging Face hub.

    Raises:
        ValueError: The checkpoint lacks weights of a classifier, its head for example, or has no tokenizer.
        OSError: There is no such folder or name.
    """
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    name = os.fspath(name_or_path)
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise FileNotFoundError(f"model: there is no folder {name}.")
    model, loading = AutoModelForSequenceClassification.from_pretrained(name, dtype=dtype, output_loading_info=True)
    # transformers only logs a warning, and gives such a model random weights.
    if missing := sorted(loading["missing_keys"]):
        raise ValueError(
            f"model: {name} is not a trained classifier, its file lacks {', '.join(missing[:3])}; "
            "expected a model that was fine-tuned for sequence classification."
        )
    tokenizer = AutoTokenizer.from_pretrained(name)
    # Where there are no files of a tokenizer, transformers makes one that knows no words.
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ValueError(f"tokenizer: {name} has none, or none that knows a word; save it beside the model.")
    return model.eval() if device is None else model.eval().to(device), tokenizer


def _labels(model: Any) -> list[str]:
    config = getattr(model, "config", None)
    count = getattr(config, "num_labels", None)
    if not isinstance(model, nn.Module) or not isinstance(count, int):
        raise ValueError(
            f"model: {type(model).__name__} is not a sequence classifier of transformers: "
            "expected a module with config.num_labels."
        )
    if getattr(config, "problem_type", None) == "regression":
        raise ValueError(
            f"model: config.problem_type of {type(model).__name__} is 'regression': its {count} outputs are "
            "quantities, not classes; a classifier is expected here. InformationBottleneckAttribution explains any "
            "output, with a loss of your own."
        )
    if count < 2:
        raise ValueError(
            f"model: {type(model).__name__} has {count} output, a regression or a single logit; a classifier of two or "
            "more classes is expected here. InformationBottleneckAttribution explains any output: a logit with "
            "loss='binary_cross_entropy', else with a loss of your own."
        )
    names = getattr(config, "id2label", None) or {}
    return [str(names.get(i, f"LABEL_{i}")) for i in range(count)]


def _greatest_length(model: Any, tokenizer: Any, wanted: int | None) -> int:
    allowed = _positions(model)
    if wanted is None:
        own = getattr(tokenizer, "model_max_length", _NO_LIMIT)
        return int(min(allowed, own if own < _NO_LIMIT else sys.maxsize))
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= allowed:
        raise ValueError(f"max_length: expected an integer from 1 to {allowed}, got {wanted!r}.")
    return wanted


def _positions(model: Any) -> int:
    """How many positions the model has: RoBERTa's table begins behind the padding token's number."""
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if isinstance(module, nn.Embedding) and last in ("position_embeddings", "wpe"):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else sys.maxsize


def _window(model: Any, longest: int) -> int:
    """Models of attention windows or blocks pad inputs of a length inside to a multiple of this many tokens."""
    config = model.config.get_text_config()
    if getattr(config, "attention_type", None) == "block_sparse" and hasattr(config, "num_random_blocks"):
        # BigBird has full attention, and no padding, where there are too few blocks.
        return int(config.block_size) if longest > (5 + 2 * config.num_random_blocks) * config.block_size else 1
    window = getattr(config, "attention_window", 1)
    return max(window) if isinstance(window, (list, tuple)) else int(window or 1)


def _padding_id(model: Any, tokenizer: Any) -> int:
    """The token that fills up: the model's own idea of it first, since decoders look for it in the input."""
    for number in (model.config.get_text_config().pad_token_id, tokenizer.pad_token_id):
        if isinstance(number, int) and number >= 0:
            return number
    raise ValueError(
        "tokenizer: neither it nor the model has a padding token; set tokenizer.pad_token, for example to "
        "tokenizer.eos_token."
    )


def _input_names(model: Any, tokenizer: Any) -> tuple[str, ...]:
    """What the model reads of what the tokenizer gives."""
    others = ("attention_mask", "token_type_ids")
    wanted = [name for name in others if name in tokenizer.model_input_names or name == "attention_mask"]
    model = _unwrapped(model)
    taken = inspect.signature(model.forward).parameters
    # Models of transformers name all inputs; what else they take is not for their embeddings.
    named = inspect.unwrap(model.forward).__module__.startswith("transformers.")
    if _takes_any(model) and not (named and "input_ids" in taken):
        return ("input_ids", *wanted)
    return ("input_ids", *(name for name in wanted if name in taken))


def _takes_any(model: Any) -> bool:
    return any(one.kind is one.VAR_KEYWORD for one in inspect.signature(model.forward).parameters.values())


def _unwrapped(model: Any) -> Any:
    """The model inside torch.compile, an adapter or a wrapper whose ``forward`` hands on whatever it gets."""
    while _takes_any(model):
        base = getattr(model, "get_base_model", None)
        inner = getattr(model, "_orig_mod", None) or (base() if callable(base) else getattr(model, "module", None))
        if not isinstance(inner, nn.Module) or inner is model:
            break
        model = inner
    return model
