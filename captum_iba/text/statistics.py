"""Statistics of a classifier's layers over texts, their files and cache, and the fingerprint of their classifier."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.resources import files as package_files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import platformdirs
import torch
from torch import Tensor, nn

from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.text.arguments import batches_by_length
from captum_iba.text.classifier import Classifier
from captum_iba.text.encoding import EncodedText
from captum_iba.text.layers import Block
from captum_iba.text.model_properties import accelerate_hooks

# Entries of a configuration that do not change what a model computes: its origin, and what loading and passes change.
_NOT_COMPUTED = frozenset(
    """
    _name_or_path name_or_path transformers_version architectures model_type auto_map _commit_hash dtype torch_dtype
    attn_implementation _attn_implementation _attn_implementation_autoset _attn_implementation_internal
    id2label label2id problem_type pad_token_id return_dict use_cache output_attentions output_hidden_states
    task_specific_params
    """.split()  # noqa: SIM905
)

BATCH_SIZE = 32
"""Number of texts per pass while statistics are estimated."""

N_GROUPS = 8
"""Number of groups of texts whose own statistics are kept."""

_SPECIAL = ("cls", "sep", "bos", "eos", "pad", "unk", "mask")


class GroupedStatistics(FeatureStatistics):
    """Statistics that keep those of groups of texts, too: a sample of groups stands for a sample of other texts."""

    def __init__(self, layer: str | None = None, min_std: float = 0.01, feature_dim: int | None = None) -> None:
        super().__init__(layer, min_std, feature_dim)
        self.groups = [FeatureStatistics(layer, min_std, feature_dim) for _ in range(N_GROUPS)]
        self.neutral_pairs: bool | None = None
        """Whether the texts are neutral ones in pairs (True) or alone (False); None for other texts."""

    def update(self, features: Tensor, mask: Tensor | None = None) -> GroupedStatistics:
        """Take one batch into account; its texts go to all groups in turn."""
        # Groups begin elsewhere in every batch, since batches may have one text each.
        shift = self._batches
        super().update(features, mask)
        for number, group in enumerate(self.groups):
            rows = slice((number - shift) % N_GROUPS, None, N_GROUPS)
            group.feature_dim = self.feature_dim
            if len(features[rows]):
                group.update(features[rows], None if mask is None else mask[rows])
        return self

    @property
    def has_groups(self) -> bool:
        """Whether several groups have data: one text is in one group, and files of earlier versions have none."""
        return sum(group.count > 0 for group in self.groups) > 1

    def resampled(self, seed: int) -> FeatureStatistics:
        """Statistics of as many groups, drawn with replacement: a bootstrap sample of the texts."""
        groups = [group for group in self.groups if group.count]
        sample = FeatureStatistics(self.layer, self.min_std, self.feature_dim)
        sample.model, sample.at_input, sample.call = self.model, self.at_input, self.call
        for number in torch.randint(len(groups), (len(groups),), generator=torch.Generator().manual_seed(seed)):
            sample._combine(groups[number].count, *groups[number]._require())
        return sample

    def further_tensors(self) -> dict[str, Tensor]:
        """The statistics of the groups, and whether they are of neutral texts."""
        neutral = {} if self.neutral_pairs is None else {"neutral_pairs": torch.tensor(self.neutral_pairs)}
        groups = [group for group in self.groups if group.count]
        if not groups:
            return neutral
        data = zip(*(group._require() for group in groups), strict=True)
        means, squares = (torch.stack(tensors).cpu().float() for tensors in data)
        counts = torch.tensor([group.count for group in groups])
        return {"group_counts": counts, "group_means": means, "group_squares": squares, **neutral}

    def _take_further(self, *parts: FeatureStatistics) -> None:
        """The groups of both; each text stays in the group that it is in."""
        grouped = [part for part in parts if isinstance(part, GroupedStatistics)]
        if len(grouped) < len(parts):
            return  # of some texts no group is known
        kinds = {part.neutral_pairs for part in grouped}
        self.neutral_pairs = kinds.pop() if len(kinds) == 1 else None
        for number, group in enumerate(self.groups):
            for part in grouped:
                if part.groups[number].count:
                    group._combine(part.groups[number].count, *part.groups[number]._require())

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        if "neutral_pairs" in tensors:
            self.neutral_pairs = bool(tensors["neutral_pairs"])
        columns = (tensors.get(f"group_{name}", torch.zeros(0)) for name in ("counts", "means", "squares"))
        for group, count, mean, squares in zip(self.groups, *columns, strict=False):
            group._combine(int(count), mean.double(), squares.double())


def estimate(
    classifier: Classifier,
    layers: Sequence[Block],
    encoded: Sequence[EncodedText],
    batch_size: int,
    show_progress: bool,
    grouped: bool = True,
) -> tuple[FeatureStatistics, ...]:
    """Estimate the statistics of layers over texts, all in the same passes; padding does not count.

    ``grouped`` keeps those of groups of texts, too.
    """
    lengths, masked = [len(item) for item in encoded], "attention_mask" in encoded[0].inputs
    batches = [
        classifier.tensors([encoded[i] for i in batch], whole_windows=True)
        # Without a mask, texts of one length share a pass, so that nothing is padded.
        for batch in (
            classifier.batches(lengths, batch_size) if masked else batches_by_length(lengths, batch_size, equal=True)
        )
    ]
    with classifier.with_padding_token():
        statistics: list[FeatureStatistics] = (GroupedStatistics if grouped else FeatureStatistics).estimate(
            classifier.model,
            [block.module for block in layers],
            batches,
            mask_func=lambda batch: batch["attention_mask"] if masked else torch.ones_like(batch["input_ids"]),
            layer_call=[block.call for block in layers],
            show_progress=show_progress,
            feature_dim=-1,
        )
    for feature_statistics, block in zip(statistics, layers, strict=True):
        feature_statistics.layer = block.key  # with the call, where one module runs several times
    return tuple(statistics)


def one_per_layer(
    statistics: FeatureStatistics | Sequence[FeatureStatistics], layers: Sequence[Block]
) -> tuple[FeatureStatistics, ...]:
    """Statistics as one per layer, by position; ValueError for another number of them, or those of other layers."""
    per_layer = (statistics,) if isinstance(statistics, FeatureStatistics) else tuple(statistics)
    if len(per_layer) != len(layers):
        raise ValueError(f"statistics has {len(per_layer)} entries, expected those of {len(layers)} layers")
    for feature_statistics, block in zip(per_layer, layers, strict=True):
        if feature_statistics.layer not in (None, block.key):
            raise ValueError(f"statistics is of layer {feature_statistics.layer!r}, expected {block.key!r}")
    return per_layer


def check_model(statistics: Sequence[FeatureStatistics], fingerprint: str, name: str) -> None:
    """Raise ValueError if statistics were gathered with another model than the one of ``fingerprint`` and ``name``.

    Those of an unknown model pass.
    """
    for feature_statistics in statistics:
        if feature_statistics.model not in (None, fingerprint):
            raise ValueError(
                f"statistics: those of layer {feature_statistics.layer!r} were gathered with another model than {name} "
                "as it is now (weights, adapter, configuration, precision or tokenizer differ): their fingerprint is "
                f"{feature_statistics.model[:12]}, expected {fingerprint[:12]}. Gather them again with this model "
                "(estimate_statistics, or captum-iba explain --statistics-from TEXTS)."
            )


def save(path: str | os.PathLike[str], layers: Sequence[Block], statistics: Sequence[FeatureStatistics]) -> None:
    """Write the statistics of one layer to the file ``path``, of several to files in the folder ``path``.

    An interruption never leaves files of two estimates: the new ones replace the old ones when all are written.
    ValueError for a folder with files of other layers, which would be of another estimate.
    """
    if len(layers) > 1:
        Path(path).mkdir(parents=True, exist_ok=True)
    files = _files(path, layers)
    if Path(path).is_dir() and (others := sorted({*Path(path).glob("*.safetensors")} - {*files})):
        raise ValueError(
            f"path is the folder {os.fspath(path)}, which holds {others[0].name} of other statistics, expected a new "
            "folder"
        )
    try:
        with TemporaryDirectory(prefix=".statistics-", dir=files[0].parent) as folder:
            new_files = [Path(folder) / file.name for file in files]
            for new_file, feature_statistics in zip(new_files, statistics, strict=True):
                feature_statistics.save(new_file)
            for file in files if len(files) > 1 else ():
                file.unlink(missing_ok=True)
            for new_file, file in zip(new_files, files, strict=True):
                os.replace(new_file, file)
    except OSError as error:  # which names the temporary folder
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise type(error)(error.errno, f"statistics: {os.fspath(path)} cannot be written: {reason}") from error


def load(path: str | os.PathLike[str], layers: Sequence[Block]) -> tuple[FeatureStatistics, ...]:
    """Read the files that :func:`save` wrote.

    FileNotFoundError if one is missing, ValueError for other files, those of another layer, or of different numbers of
    positions.
    """
    if len(layers) > 1 and Path(path).is_file():
        raise ValueError(
            f"statistics is {os.fspath(path)}, one file, expected a folder of one for each of {len(layers)} layers, "
            "as save_statistics writes it; or name the layer of the file"
        )
    files = _files(path, layers)
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"statistics is {file}, which does not exist, expected a file of statistics")
    statistics = tuple(GroupedStatistics.load(file, layer=block.key) for file, block in zip(files, layers, strict=True))
    if len(counts := {feature_statistics.count for feature_statistics in statistics}) > 1:
        raise ValueError(
            f"statistics is {os.fspath(path)!r}, whose files are of {min(counts)} to {max(counts)} positions, expected "
            "those of one estimate; gather them again"
        )
    return statistics


def _files(path: str | os.PathLike[str], layers: Sequence[Block]) -> list[Path]:
    if len(layers) == 1 and not Path(path).is_dir():
        return [Path(path)]
    return [Path(path) / f"{quote(block.key, safe='')}.safetensors" for block in layers]


def cache_folder() -> Path:
    """Folder of cached statistics: the environment variable ``CAPTUM_IBA_CACHE``, or the user's cache folder."""
    if folder := os.environ.get("CAPTUM_IBA_CACHE"):
        return Path(folder)
    return platformdirs.user_cache_path("captum_iba", appauthor=False)


def cache_path(
    classifier: Classifier,
    fingerprint: str,
    layers: Sequence[Block],
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Path:
    """Path of the cached statistics of layers over texts, which need not exist: a file, or a folder for several layers.

    It follows from all that the statistics depend on, and from nothing else.
    """
    digest = hashlib.sha256()
    for part in (
        fingerprint,
        *(block.key for block in layers),
        str(classifier.max_length),
        f"{len(layers)} layers, {N_GROUPS} groups, {len(texts)} texts, {'no' if pairs is None else len(pairs)} pairs",
        *texts,
        *(pairs or ()),
    ):
        add_part(digest, part)
    suffix = ".safetensors" if len(layers) == 1 else ""
    return Path(cache_folder() if folder is None else folder) / f"statistics-{digest.hexdigest()[:24]}{suffix}"


def cached(
    classifier: Classifier,
    layers: Sequence[Block],
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    show_progress: bool = False,
) -> tuple[tuple[FeatureStatistics, ...], Path, bool]:
    """Statistics of layers over texts, their path in the cache, and whether they were there; else they are kept now."""
    fingerprint = classifier_fingerprint(classifier)
    path = cache_path(classifier, fingerprint, layers, texts, pairs, folder)
    with suppress(FileNotFoundError, ValueError):  # missing, incomplete or damaged: estimated below
        statistics = load(path, layers)
        check_model(statistics, fingerprint, classifier.name)
        return statistics, path, True
    encoded = classifier.encode(texts, pairs or [None] * len(texts))
    statistics = estimate(classifier, layers, encoded, BATCH_SIZE, show_progress)
    for feature_statistics in statistics:
        feature_statistics.model = fingerprint
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(path, layers, statistics)
    except OSError as error:
        reason = (
            f"the cache, {path.parent}, cannot be written ({error.strerror}); CAPTUM_IBA_CACHE names another folder"
        )
        raise OSError(error.errno, reason) from error
    return statistics, path, False


def neutral_texts(paired: bool) -> tuple[list[str], list[str] | None]:
    """Texts of several kinds and lengths in the package, written for it.

    With pairs each stands beside the next, beside itself, and beside its negation: models of pairs compute otherwise
    where one text follows from the other, or contradicts it.
    """
    content = (package_files("captum_iba") / "assets" / "neutral_texts.txt").read_text(encoding="utf-8")
    texts = content.splitlines()
    if not paired:
        return texts, None
    negated = [f"It is not true that {text[0].lower()}{text[1:]}" for text in texts]
    return [*texts[:-1], *texts, *texts], [*texts[1:], *texts, *negated]


def neutral(
    classifier: Classifier, layers: Sequence[Block], paired: bool, show_progress: bool = False
) -> tuple[FeatureStatistics, ...]:
    """Statistics of layers over :func:`neutral_texts`, from the cache if they are there."""
    texts, pairs = neutral_texts(paired)
    try:
        statistics = cached(classifier, layers, texts, pairs, show_progress=show_progress)[0]
    except OSError:  # a cache that cannot be written
        with TemporaryDirectory() as folder:
            statistics = cached(classifier, layers, texts, pairs, folder, show_progress)[0]
    for feature_statistics in statistics:
        if isinstance(feature_statistics, GroupedStatistics):
            feature_statistics.neutral_pairs = paired
    return statistics


def source_of(texts: Sequence[str]) -> str:
    """What results call texts that statistics are of."""
    return f"{len(texts):,} text{'s' * (len(texts) != 1)}"


def statistics_fingerprint(statistics: Sequence[FeatureStatistics]) -> str:
    """SHA-256 of the means and standard deviations of layers, in hexadecimal digits."""
    digest = hashlib.sha256()
    for feature_statistics in statistics:
        for tensor in (feature_statistics.mean, feature_statistics.std):
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def neutral_pairs(statistics: Sequence[FeatureStatistics] | None) -> bool | None:
    """Whether statistics are of neutral texts in pairs or alone; None for those of others."""
    kinds = {getattr(feature_statistics, "neutral_pairs", None) for feature_statistics in statistics or ()}
    return kinds.pop() if len(kinds) == 1 else None


def classifier_fingerprint(classifier: Classifier) -> str:
    """SHA-256 of all that a classifier's outputs depend on: model, tokenizer and padding token, in hexadecimal digits.

    It is computed anew by every call, because weights can change in memory at any time.
    """
    # The inputs that the model reads: a tokenizer that is loaded again may give more.
    names = " ".join(classifier.input_names)
    parts = [model_fingerprint(classifier.model), tokenizer_fingerprint(classifier.tokenizer), names]
    # The configuration's padding token, which passes replace: the tokenizer's has been counted.
    if classifier.ends_in_padding or classifier.pad_id != classifier.tokenizer.pad_token_id:
        parts.append(f"padding {classifier.pad_id} {classifier.ends_in_padding}")
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def model_fingerprint(model: nn.Module) -> str:
    """SHA-256 of a model's class, configuration, weights, buffers and adapters, in hexadecimal digits.

    The entries of the configuration that change the output count, such as heads or the activation function. The device
    does not matter, nor do the weights of adapters that are loaded but not active, nor ``torch.compile``. An adapter
    that was merged into the weights is not the same as one that is active beside them: the values differ by rounding.
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
        mark = _adapters(model), weights_mark(model)
        if self._known is None or self._known[0] != mark:
            self._known = mark, model_fingerprint(model)
        return self._known[1]


def change_mark(classifier: Classifier) -> tuple[Any, ...]:
    """A value, cheap to compute, that changes with weights, adapters, configuration and settings of the tokenizer."""
    model, tokenizer = classifier.model, classifier.tokenizer
    config = json.dumps(_computed(model.config.to_dict()), sort_keys=True, default=str)
    read = (len(tokenizer), str(tokenizer.special_tokens_map), getattr(tokenizer, "truncation_side", "right"))
    return (
        _adapters(model),
        config,
        id(tokenizer),
        read,
        weights_mark(model),
    )


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


def _computed(configuration: Any) -> Any:
    if isinstance(configuration, dict):
        return {str(key): _computed(value) for key, value in configuration.items() if key not in _NOT_COMPUTED}
    return [_computed(value) for value in configuration] if isinstance(configuration, (list, tuple)) else configuration


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


def _adapters(model: nn.Module) -> tuple[str, tuple[str, ...]]:
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
