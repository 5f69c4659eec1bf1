"""The blocks of a transformer: which there are, and which one is meant by 9 or by a module's name."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from captum_iba.attr._model.nested import split_activation

if TYPE_CHECKING:
    from captum_iba.text.classifier import Classifier


@dataclass(frozen=True)
class Block:
    """One layer of a model, as :class:`captum_iba.InformationBottleneckAttribution` wants it.

    Attributes:
        name (str): The module's name in the model, for example ``"bert.encoder.layer.8"``.
        index (int or None): Position among the transformer blocks, from 1; None for any other module.
        module (nn.Module): The module itself.
        call (int): Which of the module's calls in one pass it is, from 0, or -1: the last one. ALBERT runs
            one module for many blocks.
        key (str): What statistics of this layer are kept under: the name, and the call where it matters.
    """

    name: str
    index: int | None
    module: nn.Module
    call: int
    key: str


def default_layer(depth: int) -> int:
    """The block that methods of a single layer look at when none is named, from 1.

    The bottleneck itself takes every block (:func:`find_layers`).

    Args:
        depth (int): How many blocks the model has.

    Returns:
        int: the middle one, rounded as Python rounds, never less than 1.
    """
    return max(1, round(depth / 2))


def published_layer(depth: int) -> int:
    """The block with the bottleneck in the published settings, from 1: 9 of 12, or what is as deep."""
    return max(1, round(depth * 3 / 4))


def find_blocks(model: nn.Module) -> tuple[Block, ...]:
    """The transformer blocks of a model of ``transformers``, in the order in which they run.

    They are the items of the longest list of modules of one class that is not itself inside such a list. Of
    an encoder-decoder model (T5, BART) they are the encoder's. A model that shares one module between blocks
    (ALBERT) has each of its calls as a block.

    Args:
        model (nn.Module): A model with a ``config``.

    Returns:
        tuple of Block: block 1 first.

    Raises:
        ValueError: The model has no such list.

    Examples::

        >>> [block.name for block in find_blocks(model)][:2]
        ['bert.encoder.layer.0', 'bert.encoder.layer.1']
    """
    config = getattr(model, "config", None)
    found: dict[str, nn.ModuleList] = {}
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or any(name.startswith(outer + ".") for outer in found):
            continue
        if getattr(config, "is_encoder_decoder", False) and "decoder" in name.split("."):
            continue
        if len({type(item) for item in module}) == 1 and not isinstance(module[0], nn.ModuleList):
            found[name] = module
    if not found:
        raise ValueError(
            f"model: {type(model).__name__} has no list of transformer blocks to count; "
            "name the layer by its module's name instead."
        )
    name, blocks = max(found.items(), key=lambda item: len(item[1]))
    groups = getattr(config, "num_hidden_groups", None)
    if groups == len(blocks):
        return _shared_blocks(name, blocks, int(getattr(config, "num_hidden_layers", groups)))
    return tuple(Block(f"{name}.{i}", i + 1, module, 0, f"{name}.{i}") for i, module in enumerate(blocks))


def _shared_blocks(name: str, groups: nn.ModuleList, depth: int) -> tuple[Block, ...]:
    calls = [0] * len(groups)
    blocks = []
    for i in range(depth):
        group = int(i / (depth / len(groups)))  # ALBERT's own formula
        key = f"{name}.{group}#{calls[group]}"
        blocks.append(Block(f"{name}.{group}", i + 1, groups[group], calls[group], key))
        calls[group] += 1
    return tuple(blocks)


def find_layer(model: nn.Module, layer: int | str | None = None) -> Block:
    """One layer of a model, by number, by name, or the default.

    Args:
        model (nn.Module): A model of ``transformers``.
        layer (int, str or None): Block number from 1, or a module's name as ``named_modules`` has it; None
            takes :func:`default_layer`. Default: None.

    Returns:
        Block: the layer.

    Raises:
        ValueError: There is no such block or module; the message lists what there is.
        TypeError: ``layer`` is of another type.
    """
    if isinstance(layer, str):
        return _named_layer(model, layer)
    blocks = find_blocks(model)
    if layer is None:
        layer = default_layer(len(blocks))
    if isinstance(layer, bool) or not isinstance(layer, int):
        raise TypeError(f"layer must be a number, a module's name or None, not {layer!r}.")
    if not 1 <= layer <= len(blocks):
        raise ValueError(f"layer: expected a block from 1 to {len(blocks)}, got {layer}; {_describe(blocks)}.")
    return blocks[layer - 1]


def find_layers(model: nn.Module, layer: int | str | Sequence[int | str] | None = None) -> tuple[Block, ...]:
    """The layers that a bottleneck goes behind; several share one mask.

    Args:
        model (nn.Module): A model of ``transformers``.
        layer (int, str, sequence of them, or None): As for :func:`find_layer`; None takes every block.

    Returns:
        tuple of Block: at least one.

    Raises:
        ValueError: No layer, the same one twice, or what :func:`find_layer` raises.
    """
    if layer is None:
        return find_blocks(model)
    if isinstance(layer, (int, str)):
        return (find_layer(model, layer),)
    layers = tuple(find_layer(model, one) for one in layer)
    if len({block.key for block in layers}) != len(layers) or not layers:
        raise ValueError(f"layer: expected one or more different layers, got {list(layer)!r}.")
    return layers


def _named_layer(model: nn.Module, name: str) -> Block:
    modules = dict(model.named_modules())
    if not name or name not in modules:
        try:
            exist = _describe(find_blocks(model))
        except ValueError:
            exist = "the model's parts are " + ", ".join(child for child, _ in model.named_children())
        raise ValueError(f"layer: {type(model).__name__} has no module {name!r}; {exist}.")
    try:
        same = [block for block in find_blocks(model) if block.module is modules[name]]
    except ValueError:
        same = []
    return same[-1] if same else Block(name, None, modules[name], -1, name)


def _describe(blocks: tuple[Block, ...]) -> str:
    return f"the model has the blocks 1 to {len(blocks)} ({blocks[0].name} to {blocks[-1].name})"


def check_layers(classifier: Classifier, blocks: Sequence[Block]) -> None:
    """Raise ValueError where a layer of a classifier does not give a row per token, as a short text shows."""
    if (inputs := classifier.short_text()) is not None:
        with classifier.padding_known(), token_feature_required(blocks, inputs["input_ids"].shape):
            classifier.probabilities(inputs)


@contextmanager
def token_feature_required(blocks: Sequence[Block], shape: torch.Size) -> Iterator[None]:
    """Look at the layers in the passes to come on this thread.

    Args:
        blocks (sequence of Block): The layers.
        shape (torch.Size): Of the token ids, (B, T).

    Raises:
        ValueError: In a pass, a layer gives something else than a feature of shape (B, T, D).
    """
    names = {block.module: block.name for block in blocks}
    thread = threading.get_ident()

    def check(layer: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() != thread:
            return
        found = split_activation(output)
        if found is None or found[0].ndim != 3 or found[0].shape[:2] != shape:
            given = "no tensor" if found is None else f"a feature of shape {tuple(found[0].shape)}"
            transposed = found is not None and tuple(found[0].shape[:2]) == (shape[1], shape[0])
            raise ValueError(
                f"layer: {names[layer]} gives {given}, expected one row a token, ({shape[0]}, {shape[1]}, features); "
                + (
                    "the positions come first, (T, B, D), as in XLNet, which is not supported for texts. "
                    "Choose a model whose blocks give (B, T, D)."
                    if transposed
                    else "choose a block instead."
                )
            )

    with ExitStack() as hooks:
        for module in names:
            hooks.callback(module.register_forward_hook(check).remove)
        yield
