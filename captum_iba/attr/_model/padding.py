"""Which observations of a layer are padding, according to the masks in a batch."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from captum_iba._warnings import warn_user
from captum_iba.attr._model.nested import with_values, wrapped_module

_NO_MASK = ("token_type_ids", "position_ids", "input_ids", "global_attention_mask")
_OTHER_SEQUENCES = ("decoder", "label", "tgt", "target")
_LENGTHS = re.compile(r"(^|_)len(s|gths?)?(_|$)|len(s|gths?)?$")
_ADDITIVE_MASK_THRESHOLD = -1e3


class Padding:
    """Finds the attention mask of batches, for the layers (by name) that have its positions.

    The names of the parameters of ``forward_func`` say which item of a tuple it is.
    """

    def __init__(self, forward_func: Callable[..., Any], layers: Sequence[str]) -> None:
        self._function = _with_parameters(forward_func)
        self._layers = layers
        self._have_positions: dict[int, bool] = {}
        self._of_which_text = True  # whether it is known which text of several a mask belongs to
        self._in_order: dict[int, bool] = {}  # whether the rows and positions of a layer are those of the mask
        self._warned: set[str] = set()

    def masks(
        self, batch: Any, activations: Sequence[Tensor], rerun: Callable[[Any], Sequence[Tensor]]
    ) -> list[Tensor | None]:
        """For each layer the mask for :meth:`FeatureStatistics.update`; None where all observations count.

        Activations have their features in the last dimension; ``rerun`` returns those for another batch.
        """
        named = list(_leaves(self._named(batch)))
        masks = _attention_masks(named)
        all_count: list[Tensor | None] = [None] * len(activations)
        if not masks:
            self._look_for_masks(named, activations)
            return all_count
        mask, *other_masks = masks
        if any(other.shape != mask.shape or not other.equal(mask) for other in other_masks):
            self._warn_of_mask("attention_mask")  # of several texts
            return all_count
        if bool((mask != 0).all()):
            self._look_for_masks(named, activations)  # of another sequence
            return all_count
        if (other := _mask_of_another_text(named, mask)) is not None:
            self._warn_of_texts(other)
            return all_count
        same_shape = [activation.ndim >= 3 and activation.shape[:2] == mask.shape for activation in activations]
        if any(same and number not in self._have_positions for number, same in enumerate(same_shape)):
            self._try_shorter(batch, named, mask, same_shape, activations, rerun)
            if not self._of_which_text:
                return all_count
        found = [
            self._mask_of(number, mask, activation, same_shape[number]) for number, activation in enumerate(activations)
        ]
        new = [number for number, used in enumerate(found) if used is not None and number not in self._in_order]
        if new:
            self._check_order(batch, mask, new, activations, rerun)
        return [used if self._in_order.get(number, True) else None for number, used in enumerate(found)]

    def _mask_of(self, number: int, mask: Tensor, activation: Tensor, same_shape: bool) -> Tensor | None:
        if same_shape and self._have_positions.get(number, True):
            return mask
        if activation.ndim == 2 and mask.shape[1] > 1 and len(activation) == mask.numel():
            return mask.reshape(-1)  # rows of all examples, one after the other
        if activation.ndim >= 3:  # what has no positions, as a pooler, has no padding either
            self._warn(
                f"positions {number}",
                f"batches: attention_mask has the shape {tuple(mask.shape)}, and layer {self._layers[number]} gives "
                f"{tuple(activation.shape)}, other positions: which of them are padding is not known, and all count. "
                "Pass mask_func, which returns the mask (or None: all count).",
            )
        return None

    def _try_shorter(
        self,
        batch: Any,
        named: Sequence[tuple[str, Any]],
        mask: Tensor,
        same_shape: Sequence[bool],
        activations: Sequence[Tensor],
        rerun: Callable[[Any], Sequence[Tensor]],
    ) -> None:
        """Run the model on half of the positions: a layer that has the mask's positions then has half of them, too.

        Sizes alone are ambiguous: (T, B, D) has the mask's shape where B = T, and a layer may have as many latents as
        tokens.
        """
        if mask.shape[1] == 1:
            return
        length = (mask.shape[1] + 1) // 2  # half, often whole windows for models that pad to windows

        def run_shorter(whole: str | None = None) -> Sequence[Tensor]:
            def cut(name: str, value: Tensor) -> Tensor:
                # The positions of a decoder are others.
                fits = value.shape[:2] == mask.shape and not name.startswith(_OTHER_SEQUENCES) and name != whole
                return value[:, :length] if fits else value

            return rerun(self._changed(batch, cut))

        try:
            shorter_activations = run_shorter()
        except Exception:  # a model of one length: only the shape is known
            if (other := _mask_of_another_text(named, mask, with_decoders=True)) is not None:
                self._warn_of_texts(other)
                self._of_which_text = False
                return
            texts = [name for name, value in named if _is_text(name, value, mask, with_decoders=True)]
            if len(texts) > 1:
                self._warn(
                    "texts",
                    f"batches: {' and '.join(map(repr, texts))} seem to be several texts; which of them the attention "
                    "mask belongs to is not known, since the model does not run on shorter ones, and padding is "
                    "counted as data. Pass mask_func, which returns the mask of the layer's text.",
                )
                self._of_which_text = False
                return
            for number, (activation, same) in enumerate(zip(activations, same_shape, strict=True)):
                if same and mask.shape[1] in (mask.shape[0], *activation.shape[2:]):
                    self._warn(
                        f"size {number}",
                        f"batches: layer {self._layers[number]} gives {tuple(activation.shape)}, and attention_mask "
                        f"has the shape {tuple(mask.shape)}: another size is the number of tokens, too, and the model "
                        "does not run on shorter texts, so that the mask is used by its shape alone. Pass mask_func, "
                        "which returns the mask (or None: all count), or batches of another size.",
                    )
            return
        for number, (activation, same) in enumerate(zip(shorter_activations, same_shape, strict=True)):
            if same:
                fits = activation.ndim >= 3 and activation.shape[:2] == (mask.shape[0], length)
                self._have_positions.setdefault(number, fits)
        texts = [name for name, value in named if _is_text(name, value, mask)]
        for text in texts if len(texts) > 1 else ():  # a layer that reads another text has the positions of that one
            try:
                whole_activations = run_shorter(text)
            except Exception:  # it belongs to the text of the mask
                continue
            for number, (activation, same) in enumerate(zip(whole_activations, same_shape, strict=True)):
                if same and activation.shape[:2] == mask.shape:
                    self._have_positions[number] = False

    def _check_order(
        self,
        batch: Any,
        mask: Tensor,
        numbers: Sequence[int],
        activations: Sequence[Tensor],
        rerun: Callable[[Any], Sequence[Tensor]],
    ) -> None:
        """Put tokens in the place of a text's padding: a layer in the mask's order changes the most where that was.

        A layer may have the mask's sizes, and other rows (sorted by length, or time first) or positions (flipped).
        """
        padding = mask == 0
        counts = torch.where(mask.bool().any(1), padding.sum(1), 0)
        texts = {int(counts.argmax()), int(torch.where(counts > 0, counts, mask.shape[1] + 1).argmin())}
        for text in texts if int(counts.max()) else ():
            token = int(mask[text].ne(0).int().argmax())

            def fill(name: str, value: Tensor, text: int = text, token: int = token) -> Tensor:
                if _is_text(name, value, mask):
                    value[text, padding[text].to(value.device)] = value[text, token].clone()
                return value

            try:
                filled = rerun(self._changed(batch, fill))
            except Exception:  # a model that reads the padding itself
                return
            for number in numbers:
                before, after = (values[number].detach().float() for values in (activations, filled))
                if before.shape != after.shape:
                    continue
                change = (after - before).abs().reshape(*mask.shape, -1).amax(2)
                most = int(change.argmax())
                # Not rounding, and not what a layer makes of infinite numbers.
                if not bool(change.max() > 1e-4 * before.abs().max()):
                    continue
                if not bool(padding[text].to(change.device)[most % mask.shape[1]]) or most // mask.shape[1] != text:
                    self._in_order[number] = False
                    self._warn(
                        f"order {number}",
                        f"batches: layer {self._layers[number]} seems to have the positions of attention_mask in "
                        "another order (flipped, sorted, or time first): which of them are padding is not known, and "
                        "all count. Pass mask_func, which returns the mask (or None: all count).",
                    )
        for number in numbers:
            self._in_order.setdefault(number, True)

    def _changed(self, batch: Any, change: Callable[[str, Tensor], Tensor]) -> Any:
        """A batch with a function applied to copies of its tensors, with their names."""

        def applied(name: str, value: Any) -> Any:
            if isinstance(value, Mapping):
                return with_values(value, {key: applied(str(key), value[key]) for key in value})
            if isinstance(value, (tuple, list)) and not _are_numbers(value):
                items = [applied(name, item) for item in value]
                return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
            # The model may write into its inputs, and is not to write into the user's batch.
            return change(name, value.clone()) if isinstance(value, Tensor) else value

        items = batch.items() if isinstance(batch, Mapping) else zip(self._named(batch), batch, strict=False)
        changed = {name: applied(str(name), value) for name, value in items}
        return changed if isinstance(batch, Mapping) else tuple(changed.values())

    def _named(self, batch: Any) -> dict[str, Any]:
        """The values of a batch by the names of the parameters that take them."""
        if isinstance(batch, Mapping):
            return dict(batch)
        values = batch if isinstance(batch, (tuple, list)) else (batch,)
        try:
            bound = inspect.signature(self._function).bind(*values)
        except (TypeError, ValueError):
            return {f"item {number}": value for number, value in enumerate(values)}
        named: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if bound.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                named.update({f"item {number}": item for number, item in enumerate(value, len(named))})
            else:
                named[name] = value
        return named

    def _look_for_masks(self, named: Sequence[tuple[str, Any]], activations: Sequence[Tensor]) -> None:
        shapes = [activation.shape[:2] for activation in activations if activation.ndim >= 3]
        for name, value in named:
            if name in _NO_MASK:
                continue
            if isinstance(value, Tensor) and value.shape in shapes:
                looks_like_padding = _marks_padding(name, value)
            elif name.startswith(_OTHER_SEQUENCES):
                looks_like_padding = False
            else:
                looks_like_padding = _is_of_lengths(name, value, activations) or (
                    isinstance(value, Tensor) and _is_mask_by_name(name, value, activations)
                )
            if looks_like_padding:
                self._warn_of_mask(name)

    def _warn_of_mask(self, name: str) -> None:
        self._warn(
            "mask",
            f"batches: {name!r} seems to mark padding, which is counted as data. "
            "Pass the batches as mappings with 'attention_mask', or mask_func=lambda batch: ... that "
            "returns the mask (or None, where all count).",
        )

    def _warn_of_texts(self, name: str) -> None:
        self._warn(
            "texts",
            f"batches: {name!r} and the attention mask seem to mark padding of two texts; which one a layer reads "
            "is not known, and padding is counted as data. Pass mask_func, which returns the mask of the layer's "
            "text, 1 for tokens and 0 for padding.",
        )

    def _warn(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warn_user(message)


def _leaves(named: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Tensors and lists of numbers with their names, also inside mappings, tuples and lists."""
    for name, value in named.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        elif isinstance(value, (tuple, list)) and not _are_numbers(value):
            yield from _leaves({f"item {number}": item for number, item in enumerate(value)})
        else:
            yield str(name), value


def _are_numbers(value: Sequence[Any]) -> bool:
    return all(isinstance(item, Real) for item in value)


def _attention_masks(named: Sequence[tuple[str, Any]]) -> list[Tensor]:
    """Masks (B, T) that are not 0 for tokens: transformers' by name, or the inverse of torch's padding masks.

    Several only if one name occurs several times.
    """
    masks: dict[str, list[Tensor]] = {}
    for name, value in named:
        if not isinstance(value, Tensor) or value.ndim != 2:
            continue
        if name.endswith("key_padding_mask") and not name.startswith(_OTHER_SEQUENCES):
            masks.setdefault(name, []).append(~value if value.dtype is torch.bool else value == 0)
        elif name == "attention_mask":
            if bool((value < 0).any()):
                raise ValueError(
                    "batches: attention_mask holds negative numbers, expected 1 for tokens and 0 for padding; for a "
                    "mask of another kind pass mask_func"
                )
            masks.setdefault(name, []).append(value)
    return next(iter(masks.values()), [])


def _mask_of_another_text(named: Sequence[tuple[str, Any]], mask: Tensor, with_decoders: bool = False) -> str | None:
    """Name of a mask of the same shape, but with other padding, or none; those of decoders are known by their names."""
    for name, value in named:
        if name in _NO_MASK or (name.startswith(_OTHER_SEQUENCES) and not with_decoders):
            continue
        if not isinstance(value, Tensor) or value.shape != mask.shape:
            continue
        value = _without_additive(name, value)
        is_mask = _marks_padding(name, value) or (_is_called_mask(name) and bool((value == value[0, 0]).all()))
        ones, marked = value != 0, mask != 0
        if is_mask and not (ones.equal(marked) or ones.equal(~marked)):
            return name
    return None


def _is_text(name: str, value: Any, mask: Tensor, with_decoders: bool = False) -> bool:
    """Whether a value seems to have token ids, or vectors, at the positions of a mask."""
    if not isinstance(value, Tensor) or value.shape[:2] != mask.shape or _is_called_mask(name):
        return False
    others = ("label", "target") if with_decoders else _OTHER_SEQUENCES
    if name.startswith((*others, "token_type", "position")):
        return False
    return value.ndim > 2 or (not value.is_floating_point() and bool((value > 1).any()))


def _is_of_lengths(name: str, value: Any, activations: Sequence[Tensor]) -> bool:
    """Whether the value is called lengths, with one number per example, and they differ."""
    if not _LENGTHS.search(name):
        return False
    if isinstance(value, (tuple, list)):
        return len(set(value)) > 1 and _have_positions_of(len(value), activations)
    if not isinstance(value, Tensor) or value.ndim != 1 or len(value) == 0:
        return False
    return bool((value != value[0]).any()) and _have_positions_of(len(value), activations)


def _is_mask_by_name(name: str, value: Tensor, activations: Sequence[Tensor]) -> bool:
    """Whether a tensor that is called a mask marks padding of the examples, of any shape and values."""
    if not _is_called_mask(name) or "causal" in name or value.ndim < 2 or value.numel() == 0:
        return False
    if not _have_positions_of(len(value), activations) or _is_triangle(value):
        return False
    if value.is_floating_point() and bool((value <= _ADDITIVE_MASK_THRESHOLD).any()) and bool((value <= 0).all()):
        value = value > _ADDITIVE_MASK_THRESHOLD
    sizes = [size for size in value.shape[1:] if size > 1]
    if len(sizes) == 1:
        return _marks_padding(name, value.reshape(len(value), -1))
    return value.ndim > 2 and not bool((value == value.amax()).all())


def _have_positions_of(n_examples: int, activations: Sequence[Tensor]) -> bool:
    """Whether a layer has positions of so many examples: in a dimension of their own, or all in the first one."""
    return any(
        len(activation) % n_examples == 0 and (activation.ndim >= 3 or len(activation) > n_examples)
        for activation in activations
    )


def _is_triangle(value: Tensor) -> bool:
    """Whether a matrix says which positions are seen by later ones, or by earlier ones."""
    if value.ndim != 2 or value.shape[0] != value.shape[1]:
        return False
    seen = value == value[0, 0]  # the first position sees itself
    return bool(seen.equal(seen.tril()) and seen.tril().sum() == len(seen) * (len(seen) + 1) // 2)


def _with_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """What names the parameters of a callable: of a wrapper (torch.compile, PEFT, DataParallel) the model in it."""
    while isinstance(function, Module):
        kinds = {parameter.kind for parameter in inspect.signature(function.forward).parameters.values()}
        wrapped = wrapped_module(function)
        if kinds != {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} or wrapped is None:
            return function.forward
        function = wrapped
    return function


def _is_called_mask(name: str) -> bool:
    return "mask" in name or "pad" in name


def _marks_padding(name: str, value: Tensor) -> bool:
    """Whether a (B, T) tensor is 1 for the tokens of each row and 0 for padding on one side of them."""
    called_mask, value = _is_called_mask(name), _without_additive(name, value)
    if (value.is_floating_point() and not called_mask) or not bool(((value == 0) | (value == 1)).all()):
        return False
    # A mask may be true for padding, too; anything else would be token types.
    return _is_one_side(value.bool()) or (called_mask and _is_one_side(value == 0))


def _without_additive(name: str, value: Tensor) -> Tensor:
    """An additive mask as one of 1 and 0; other values as they are."""
    additive = _is_called_mask(name) and value.is_floating_point() and bool((value <= _ADDITIVE_MASK_THRESHOLD).any())
    return (value > _ADDITIVE_MASK_THRESHOLD).long() if additive else value


def _is_one_side(ones: Tensor) -> bool:
    # Token types begin with 0 in every row, and padding on the left leaves at least one row whole.
    if bool(ones.all()) or not bool(ones.any(1).all()):
        return False
    changes = (ones[:, 1:] != ones[:, :-1]).sum(1)
    right, left = bool(ones[:, 0].all()), bool(ones[:, -1].all() and ones.all(1).any())
    return bool((changes <= 1).all()) and (right or left)
