"""Fingerprints of models, tokenizers and statistics: what a result or a file depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from captum_iba._explain.model import accelerate_hooks
from captum_iba.attr.feature_statistics import FeatureStatistics

# Entries of a configuration that do not change what a model computes: its origin, and what loading and passes change.
_NOT_COMPUTED = frozenset(
    """
    _name_or_path name_or_path transformers_version architectures model_type auto_map _commit_hash dtype torch_dtype
    attn_implementation _attn_implementation _attn_implementation_autoset _attn_implementation_internal
    id2label label2id problem_type pad_token_id return_dict use_cache output_attentions output_hidden_states
    task_specific_params
    """.split()  # noqa: SIM905
)

_SPECIAL = ("cls", "sep", "bos", "eos", "pad", "unk", "mask")


def statistics_fingerprint(statistics: Sequence[FeatureStatistics]) -> str:
    """SHA-256 of the means and standard deviations of layers, in hexadecimal digits."""
    digest = hashlib.sha256()
    for feature_statistics in statistics:
        for tensor in (feature_statistics.mean, feature_statistics.std):
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def model_fingerprint(model: nn.Module) -> str:
    """SHA-256 of a model's class, configuration, weights, buffers and adapters, in hexadecimal digits.

    The entries of the configuration that change the output count, such as heads or the activation function. The device
    does not matter, nor do the weights of adapters that are loaded but not active, nor ``torch.compile``. An adapter
    that was merged into the weights is not the same as one that is active beside them: the values differ by rounding.
    """
    model = getattr(model, "_orig_mod", model)
    digest = hashlib.sha256(type(model).__qualname__.encode())
    adapters, idle = adapters_of(model)
    add_part(digest, adapters)
    if callable(described := getattr(getattr(model, "config", None), "to_dict", None)):
        add_part(digest, json.dumps(computed_entries(described()), sort_keys=True, default=str))
    offloaded = _offloaded(model)
    seen: dict[tuple[Any, ...], bytes] = {}
    for name, value in sorted(model.state_dict().items()):
        if not (name in idle or name.startswith(tuple(f"{prefix}." for prefix in idle))):
            add_part(digest, name)
            digest.update(_content(offloaded.get(name, value), seen))
    return digest.hexdigest()


class RememberedFingerprint:
    """:func:`model_fingerprint` of a model, computed again only if its weights or active adapters have changed."""

    def __init__(self) -> None:
        self._known: tuple[Any, str] | None = None

    def of(self, model: nn.Module) -> str:
        """The fingerprint. That of large weights takes seconds."""
        mark = adapters_of(model), weights_mark(model)
        if self._known is None or self._known[0] != mark:
            self._known = mark, model_fingerprint(model)
        return self._known[1]


def weights_mark(model: nn.Module) -> list[tuple[Any, ...]]:
    """A value, cheap to compute, that changes with the weights and buffers of a model."""
    return [
        (tensor.data_ptr(), None if tensor.is_inference() else tensor._version, _sample_of(tensor))
        for tensor in (*model.parameters(), *model.buffers())
    ]


def _sample_of(tensor: torch.Tensor) -> float | None:
    """Fused optimizers and ``.data`` change a tensor without a new version; a step changes nearly every entry."""
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized or not tensor.is_floating_point():
        return None
    with suppress(NotImplementedError, RuntimeError):  # types of less than a byte, weights that are elsewhere
        sample = tensor.detach().flatten()[:: max(1, tensor.numel() // 16)].double()
        return float(sample @ torch.arange(1.0, len(sample) + 1, dtype=torch.float64, device=sample.device))
    return None


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """SHA-256 of a fast tokenizer: vocabulary, rules and special tokens."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    # The last call left these.
    for state in ("truncation", "padding"):
        content.pop(state, None)
    content["special"] = {name: getattr(tokenizer, f"{name}_token", None) for name in _SPECIAL}
    content["cut at"] = getattr(tokenizer, "truncation_side", "right")
    if getattr(tokenizer, "split_special_tokens", False):  # "[SEP]" in a text is a word
        content["split special"] = True
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode("utf-8", "surrogatepass")).hexdigest()


def add_part(digest: Any, part: str) -> None:
    """Add a string to a digest, with its length, so that ("ab", "c") and ("a", "bc") differ."""
    digest.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))


def computed_entries(configuration: Any) -> Any:
    """The entries of a configuration that change what a model computes."""
    if isinstance(configuration, dict):
        return {str(key): computed_entries(value) for key, value in configuration.items() if key not in _NOT_COMPUTED}
    if isinstance(configuration, (list, tuple)):
        return [computed_entries(value) for value in configuration]
    return configuration


def _content(value: Any, seen: dict[tuple[Any, ...], bytes]) -> bytes:
    """The digest of an entry of a state_dict; tensors that share their memory are read once."""
    if isinstance(value, (tuple, list)):  # the packed weights of quantized layers
        return hashlib.sha256(b"".join(_content(item, seen) for item in value)).digest()
    if not isinstance(value, Tensor):
        return hashlib.sha256(f"{type(value).__name__} {value}".encode()).digest() if _plain(value) else b"?"
    unshared = value.is_meta or value.is_quantized or value.layout is not torch.strided
    key = () if unshared else (value.device, value.data_ptr(), value.shape, value.stride(), value.dtype)
    if unshared or key not in seen:
        digest = hashlib.sha256(f"{tuple(value.shape)} {value.dtype}".encode())
        if not value.is_meta:
            tensor = value.detach()
            tensor = tensor.dequantize() if tensor.is_quantized else tensor
            tensor = (tensor.to_dense() if tensor.layout is not torch.strided else tensor).cpu().contiguous()
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        seen[key] = digest.digest()
    return seen[key]


def _plain(value: Any) -> bool:
    """Whether the text of a value is the same in another process."""
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype))


def adapters_of(model: nn.Module) -> tuple[str, tuple[str, ...]]:
    """Adapters of PEFT: which are active, merged or disabled, their scaling; prefixes of the weights of idle ones.

    The weights of all adapters are in the state_dict, and nothing in it says which ones are active.
    """
    description: list[Any] = [str(getattr(config, "peft_type", "")) for config in _active_configurations(model)]
    idle = []
    for name, module in model.named_modules():
        if not hasattr(module, "merged_adapters"):
            continue
        active = [] if module.disable_adapters else list(module.active_adapters)
        scaling = getattr(module, "scaling", {})
        strength = [float(scaling[adapter]) for adapter in active if adapter in scaling]
        description.append([name, type(module).__name__, active, sorted(module.merged_adapters), strength])
        for attribute in (*module.adapter_layer_names, *module.other_param_names):
            by_adapter = getattr(module, attribute, None)
            if isinstance(by_adapter, (nn.ModuleDict, nn.ParameterDict)):
                idle += [f"{name}.{attribute}.{adapter}" for adapter in by_adapter if adapter not in active]
    return json.dumps(description), tuple(idle)


def _active_configurations(model: nn.Module) -> Iterator[Any]:
    configurations = getattr(model, "peft_config", None)
    active = getattr(model, "active_adapters", ())
    if isinstance(configurations, dict) and isinstance(active, (list, tuple)):  # in transformers it is a method
        yield from (configurations[adapter] for adapter in active if adapter in configurations)


def _offloaded(model: nn.Module) -> dict[str, Tensor]:
    """Weights that accelerate offloads between passes, by their names in the state_dict."""
    weights = {}
    for prefix, module in model.named_modules():
        for hook in accelerate_hooks(module):
            weights_map = getattr(hook, "weights_map", None)
            if weights_map is None:
                continue
            for name, value in (*module._parameters.items(), *module._buffers.items()):
                if value is not None and value.is_meta:
                    weights[f"{prefix}.{name}" if prefix else name] = weights_map[name]
    return weights
