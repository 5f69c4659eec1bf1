"""What tells one classifier from another: one fingerprint for the cache, kept results and files of statistics."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from captum_iba.text.classifier import Classifier

# What a configuration holds beside what a model computes: where it came from, and what loading and passes change.
_NOT_COMPUTED = frozenset(
    """
    _name_or_path name_or_path transformers_version architectures model_type auto_map _commit_hash dtype torch_dtype
    attn_implementation _attn_implementation _attn_implementation_autoset _attn_implementation_internal
    id2label label2id problem_type pad_token_id return_dict use_cache output_attentions output_hidden_states
    task_specific_params
    """.split()  # noqa: SIM905
)

_SPECIAL = ("cls", "sep", "bos", "eos", "pad", "unk", "mask")


def classifier_fingerprint(classifier: Classifier) -> str:
    """What the activations of a classifier depend on: its model and its tokenizer, as hexadecimal digits.

    It is computed anew by every call, because weights can change in memory at any time.
    """
    # What the model takes of what the tokenizer gives: a tokenizer that is loaded back may offer more.
    names = " ".join(classifier._names)
    parts = (model_fingerprint(classifier.model), tokenizer_fingerprint(classifier.tokenizer), names)
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def model_fingerprint(model: nn.Module) -> str:
    """SHA-256 of a model's class, configuration, weights, buffers and adapters, as hexadecimal digits.

    Of the configuration counts what changes the pass, such as heads or the activation function.

    The device does not matter, nor do the weights of adapters that are loaded and not active. An adapter that was
    merged into the weights is not the same as one that is active beside them: the numbers differ by rounding.

    Args:
        model (nn.Module): Any model; one of ``torch.compile`` counts as what was compiled.
    """
    model = getattr(model, "_orig_mod", model)
    digest = hashlib.sha256(type(model).__qualname__.encode())
    adapters, idle = _adapters(model)
    add_part(digest, adapters)
    if callable(described := getattr(getattr(model, "config", None), "to_dict", None)):
        add_part(digest, json.dumps(_computed(described()), sort_keys=True, default=str))
    offloaded = _offloaded(model)
    seen: dict[tuple[Any, ...], bytes] = {}
    for name, value in sorted(model.state_dict().items()):
        if not (name in idle or name.startswith(tuple(f"{one}." for one in idle))):
            add_part(digest, name)
            digest.update(_content(offloaded.get(name, value), seen))
    return digest.hexdigest()


def change_mark(model: nn.Module) -> tuple[Any, ...]:
    """Something cheap that differs after most changes of a model's weights or adapters: not those through ``.data``."""
    weights = (*model.parameters(), *model.buffers())
    return _adapters(model), [(one.data_ptr(), None if one.is_inference() else one._version) for one in weights]


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """SHA-256 of what a fast tokenizer makes of a text: vocabulary, rules and special tokens."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    # What the last call left behind, not what the tokenizer is.
    for state in ("truncation", "padding"):
        content.pop(state, None)
    content["special"] = {name: getattr(tokenizer, f"{name}_token", None) for name in _SPECIAL}
    content["cut at"] = getattr(tokenizer, "truncation_side", "right")
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode("utf-8", "surrogatepass")).hexdigest()


def add_part(digest: Any, part: str) -> None:
    """Add a string to a digest, with its length, so that ("ab", "c") and ("a", "bc") differ."""
    digest.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))


def _computed(configuration: Any) -> Any:
    if isinstance(configuration, dict):
        return {str(key): _computed(one) for key, one in configuration.items() if key not in _NOT_COMPUTED}
    return [_computed(one) for one in configuration] if isinstance(configuration, (list, tuple)) else configuration


def _content(value: Any, seen: dict[tuple[Any, ...], bytes]) -> bytes:
    """The digest of an entry of a state_dict; tensors that share their memory are read once."""
    if isinstance(value, (tuple, list)):  # the packed weights of quantised layers
        return hashlib.sha256(b"".join(_content(one, seen) for one in value)).digest()
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


def _adapters(model: nn.Module) -> tuple[str, tuple[str, ...]]:
    """Adapters as PEFT has them: which are active, merged or switched off, how strong; where those lie that are not.

    The weights of all of them are in the state_dict, and nothing in it says which ones count.
    """
    said: list[Any] = [str(getattr(one, "peft_type", "")) for one in _active_configurations(model)]
    idle = []
    for name, module in model.named_modules():
        if not hasattr(module, "merged_adapters"):
            continue
        active = [] if module.disable_adapters else list(module.active_adapters)
        scaling = getattr(module, "scaling", {})
        strength = [float(scaling[one]) for one in active if one in scaling]
        said.append([name, type(module).__name__, active, sorted(module.merged_adapters), strength])
        for attribute in (*module.adapter_layer_names, *module.other_param_names):
            held = getattr(module, attribute, None)
            if isinstance(held, (nn.ModuleDict, nn.ParameterDict)):
                idle += [f"{name}.{attribute}.{one}" for one in held if one not in active]
    return json.dumps(said), tuple(idle)


def _active_configurations(model: nn.Module) -> Iterator[Any]:
    configurations = getattr(model, "peft_config", None)
    active = getattr(model, "active_adapters", ())
    if isinstance(configurations, dict) and isinstance(active, (list, tuple)):  # of transformers it is a method
        yield from (configurations[one] for one in active if one in configurations)


def _offloaded(model: nn.Module) -> dict[str, Tensor]:
    """Weights that accelerate keeps elsewhere between the passes, by their names in the state_dict."""
    found = {}
    for prefix, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        for one in getattr(hook, "hooks", (hook,)):
            kept = getattr(one, "weights_map", None)
            if kept is None:
                continue
            for name, value in (*module._parameters.items(), *module._buffers.items()):
                if value is not None and value.is_meta:
                    found[f"{prefix}.{name}" if prefix else name] = kept[name]
    return found
