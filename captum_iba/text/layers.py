"""The layers of a model: its transformer blocks, and layers by number or by a module's name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from captum_iba._checks import kind_of
from captum_iba._warnings import warn_user
from captum_iba.attr._model.guard import on_this_thread
from captum_iba.attr._model.hooks import HookPoint, hooked
from captum_iba.attr._model.nested import split_activation
from captum_iba.attr.objective import standard_noise
from captum_iba.text.classifier import Classifier

# Difference of probabilities by which a model shows that it reads tokens past its layers.
_READ_PAST = 1e-3


@dataclass(frozen=True)
class Block:
    """One layer of a model: a transformer block, or any other module.

    Attributes:
        name (str): Name of the module in the model, for example ``"bert.encoder.layer.8"``.
        index (int or None): Number of the transformer block, from 1; None for any other module.
        module (nn.Module): The module itself.
        call (int): Number of the module's call in a pass, from 0, or -1 for the last one. ALBERT runs one module for
            many blocks.
        key (str): Key of the layer's statistics: its name, and its call where one module runs for many blocks.
    """

    name: str
    index: int | None
    module: nn.Module
    call: int
    key: str


def default_layer(depth: int) -> int:
    """Number of the block that methods of a single layer use by default: the middle one.

    The information bottleneck uses all blocks by default (:func:`find_layers`).

    Args:
        depth (int): Number of blocks of the model.

    Returns:
        int: Block number from 1.

    Examples::

        >>> default_layer(12)
        6
    """
    return max(1, round(depth / 2))


def published_layer(depth: int) -> int:
    """Number of the block that the published settings use, from 1: at three quarters of the depth, 9 of 12."""
    return max(1, round(depth * 3 / 4))


def find_blocks(model: nn.Module) -> tuple[Block, ...]:
    """The transformer blocks of a model of ``transformers``, in the order in which they run.

    They are the items of the list of modules of one class with the most parameters that is not itself inside such a
    list. For an encoder-decoder model (T5, BART) they are those of the encoder. If a model runs one module for many
    blocks (ALBERT), each of its calls is a block.

    Args:
        model (nn.Module): A model with a ``config``.

    Returns:
        tuple of Block: The blocks, number 1 first.

    Raises:
        ValueError: The model has no such list.

    Examples::

        >>> [block.name for block in find_blocks(model)][:2]
        ['bert.encoder.layer.0', 'bert.encoder.layer.1']
    """
    config = getattr(model, "config", None)
    module_lists: dict[str, nn.ModuleList] = {}
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or any(name.startswith(outer + ".") for outer in module_lists):
            continue
        if getattr(config, "is_encoder_decoder", False) and "decoder" in name.split("."):
            continue
        if len({type(item) for item in module}) == 1 and not isinstance(module[0], nn.ModuleList):
            module_lists[name] = module
    if not module_lists:
        raise ValueError(
            f"model: {type(model).__name__} has no list of transformer blocks to count; "
            "name the layer by its module's name instead."
        )
    # By parameters: a model may have more heads, one per label, than blocks.
    name, blocks = max(module_lists.items(), key=lambda item: (_n_parameters(item[1]), len(item[1])))
    # XLM has its attentions, feed-forward networks and normalizations in lists of their own: no module is a block.
    parent = name.rpartition(".")[0]
    beside = [key for key in module_lists if key.rpartition(".")[0] == parent and len(module_lists[key]) == len(blocks)]
    if len(blocks) > 1 and len(beside) > 1:
        raise ValueError(
            f"model: the blocks of {type(model).__name__} are spread over {', '.join(beside)}, expected one list of "
            "them; name the layer by its module's name instead."
        )
    groups = getattr(config, "num_hidden_groups", None)
    if groups == len(blocks):
        return _shared_blocks(name, blocks, int(getattr(config, "num_hidden_layers", groups)))
    first = {module: i for i, module in reversed([*enumerate(blocks)])}
    return _numbered(name, blocks, [first[module] for module in blocks])


def _n_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _shared_blocks(name: str, groups: nn.ModuleList, depth: int) -> tuple[Block, ...]:
    # ALBERT's own formula.
    return _numbered(name, groups, [int(i / (depth / len(groups))) for i in range(depth)], shared=True)


def _numbered(name: str, modules: nn.ModuleList, order: Sequence[int], shared: bool = False) -> tuple[Block, ...]:
    """A block for each call of modules of a list; the key has the call's number where a module runs several times."""
    calls: Counter[int] = Counter()
    blocks = []
    for number, i in enumerate(order, 1):
        several = shared or order.count(i) > 1
        key = f"{name}.{i}#{calls[i]}" if several else f"{name}.{i}"
        blocks.append(Block(f"{name}.{i}", number, modules[i], calls[i], key))
        calls[i] += 1
    return tuple(blocks)


def find_layer(model: nn.Module, layer: int | str | None = None) -> Block:
    """One layer of a model, by number or by name.

    Args:
        model (nn.Module): A model of ``transformers``.
        layer (int, str or None): Block number from 1, or a module's name as in ``named_modules``.
            Default: :func:`default_layer`.

    Returns:
        Block: The layer.

    Raises:
        ValueError: There is no such block or module; the message lists those that exist.
        TypeError: ``layer`` is of another type.

    Examples::

        >>> find_layer(model, 9).name
        'bert.encoder.layer.8'
    """
    if isinstance(layer, str):
        return _named_layer(model, layer)
    blocks = find_blocks(model)
    if layer is None:
        layer = default_layer(len(blocks))
    if isinstance(layer, bool) or not isinstance(layer, int):
        raise TypeError(f"layer is {layer!r}, expected a block number, a module's name or None")
    if not 1 <= layer <= len(blocks):
        raise ValueError(f"layer is {layer}, expected a block from 1 to {len(blocks)}; {_describe(blocks)}")
    return blocks[layer - 1]


def find_layers(model: nn.Module, layer: int | str | Sequence[int | str] | None = None) -> tuple[Block, ...]:
    """Layers of a model for a bottleneck; several share one mask.

    Args:
        model (nn.Module): A model of ``transformers``.
        layer (int, str, sequence of them, or None): Block number from 1, or a module's name. Default: all blocks.

    Returns:
        tuple of Block: One or more layers.

    Raises:
        ValueError: No layer, a layer twice, or as :func:`find_layer`.
        TypeError: As :func:`find_layer`.

    Examples::

        >>> [block.index for block in find_layers(model, [3, 9])]
        [3, 9]
    """
    if layer is None:
        return find_blocks(model)
    if isinstance(layer, (int, str)):
        return (find_layer(model, layer),)
    if not isinstance(layer, Sequence):
        raise TypeError(f"layer is {kind_of(layer)}, expected a block from 1, a module's name, or several of these")
    layers = tuple(find_layer(model, item) for item in layer)
    if len({block.key for block in layers}) != len(layers) or not layers:
        raise ValueError(f"layer is {list(layer)!r}, expected one or more different layers")
    return layers


def _named_layer(model: nn.Module, name: str) -> Block:
    modules = dict(model.named_modules())
    if not name or name not in modules:
        try:
            existing = _describe(find_blocks(model))
        except ValueError:
            existing = "the model's parts are " + ", ".join(child for child, _ in model.named_children())
        raise ValueError(f"layer is {name!r}, expected the name of a module of {type(model).__name__}; {existing}")
    try:
        blocks = [block for block in find_blocks(model) if block.module is modules[name]]
    except ValueError:
        blocks = []
    return blocks[-1] if blocks else Block(name, None, modules[name], -1, name)


def _describe(blocks: tuple[Block, ...]) -> str:
    return f"the model has the blocks 1 to {len(blocks)} ({blocks[0].name} to {blocks[-1].name})"


def embedding_layer(model: Any) -> str | None:
    """Name of the module with the word embeddings; None for encoder-decoders, whose decoder has the same."""
    if getattr(model.config, "is_encoder_decoder", False):
        return None
    weight = getattr(model.get_input_embeddings(), "weight", None)
    embeddings = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    # The last one runs: encoders of T5 have their own, with the weight of one that never does.
    return next((name for name, module in reversed(embeddings) if module.weight is weight), None)


def check_layers(classifier: Classifier, blocks: Sequence[Block]) -> None:
    """Raise ValueError if a layer of a classifier does not give one row per token, which is tried with a short text.

    Neither does one that never runs, nor the decoder of an encoder-decoder, whose row of a token is that of the one
    before. Several must be in the order in which they run. Warn if the model reads tokens past the layers.
    """
    if (inputs := classifier.short_text()) is None:
        return
    names = {block.module: block.name for block in blocks}
    ran: list[nn.Module] = []
    decoders: list[nn.Module] = []

    def record(module: nn.Module, *_: Any) -> None:
        if module in names and not set(ran).isdisjoint(decoders):
            raise ValueError(
                f"layer {names[module]} gives activations of the decoder, where the row of each token is that of the "
                "one before; expected a layer of the encoder, such as a block by its number"
            )
        ran.append(module)

    if getattr(classifier.model.config, "is_encoder_decoder", False):
        decoders = [m for name, m in classifier.model.named_modules() if name.rpartition(".")[2] == "decoder"]
    with classifier.with_padding_token(), ExitStack() as hooks:
        for module in decoders:
            hooks.callback(module.register_forward_pre_hook(on_this_thread(record)).remove)
        for module in names:
            hooks.callback(module.register_forward_hook(on_this_thread(record)).remove)
        with token_activations_required(blocks, inputs["input_ids"].shape):
            classifier.probabilities(inputs)
    for module in names.keys() - set(ran):
        raise ValueError(f"layer {names[module]} is never called, expected a module that runs in every pass")
    calls = [[at for at, module in enumerate(ran) if module is block.module] for block in blocks]
    for (before, at), (after, then) in pairwise(
        (block.key, of_module[block.call]) for block, of_module in zip(blocks, calls, strict=True)
    ):
        if at > then:
            raise ValueError(
                f"layer has {before} before {after}, which runs first, expected layers in the order in which they run: "
                "information is measured at the first"
            )
    if _reads_past(classifier, blocks, inputs):
        warn_user(
            f"layer: {type(classifier.model).__name__} reads the tokens past {blocks[0].name}"
            + (f" to {blocks[-1].name}" if len(blocks) > 1 else "")
            + ": its output for other tokens is another where all that these layers give is replaced (in T5 and BART "
            "the decoder reads them, too); bits are of what passes the layers alone, and the check by deletion and "
            "methods leave_one_out and lime are of all"
        )


def _reads_past(classifier: Classifier, blocks: Sequence[Block], inputs: dict[str, Tensor]) -> bool:
    """Whether the output depends on the tokens where the activations of layers are the same for all."""
    special = torch.tensor([sorted(set(classifier.tokenizer.all_special_ids))], device=classifier.device)
    ids = inputs["input_ids"]
    free = [number for number in range(len(classifier.tokenizer)) if number not in set(special[0].tolist())][:2]
    is_word = ~torch.isin(ids, special)
    if len(free) < 2 or not bool(is_word.any()):
        return False
    points = [HookPoint(block.module, block.call) for block in blocks]
    n_calls: Counter[nn.Module] = Counter()

    def close(layer: nn.Module, at_input: bool, call: int, value: Any, _: Any) -> Any:
        calls = {point.call % n_calls[layer] for point in points if point.layer is layer} if n_calls[layer] else set()
        if call not in calls or (split := split_activation(value)) is None:
            return None
        activation, put = split
        noise = standard_noise(tuple(activation.shape[1:]), (call,), activation.device)
        return put(noise.to(activation.dtype).expand_as(activation))

    with classifier.with_padding_token():
        with hooked(points, lambda *_: None) as calls:
            classifier.probabilities(inputs)
        n_calls.update({layer: count for (layer, _), count in calls.items()})
        outputs = []
        for number in free:
            with hooked(points, close):
                others = {**inputs, "input_ids": torch.where(is_word, number, ids)}
                outputs.append(classifier.probabilities(others))
    return bool((outputs[0] - outputs[1]).abs().max() > _READ_PAST)


@contextmanager
def token_activations_required(blocks: Sequence[Block], shape: torch.Size) -> Iterator[None]:
    """Context in which passes of this thread raise ValueError unless layers return (B, T, D).

    ``shape`` is that of the token ids, (B, T).
    """
    names = {block.module: block.name for block in blocks}

    def check(layer: nn.Module, args: Any, output: Any) -> None:
        activation = None if (split := split_activation(output)) is None else split[0]
        if activation is not None and activation.ndim == 3 and activation.shape[:2] == shape:
            return
        returned = "no tensor" if activation is None else f"an activation of shape {tuple(activation.shape)}"
        advice = "choose a block instead"
        if activation is not None and tuple(activation.shape[:2]) == (shape[1], shape[0]):
            advice = (
                "the positions come first, (T, B, D), as in XLNet, which is not supported for texts; choose a model "
                "whose blocks give (B, T, D)"
            )
        raise ValueError(
            f"layer {names[layer]} returns {returned}, expected one row per token, "
            f"({shape[0]}, {shape[1]}, features); {advice}"
        )

    with ExitStack() as hooks:
        for module in names:
            hooks.callback(module.register_forward_hook(on_this_thread(check)).remove)
        yield
