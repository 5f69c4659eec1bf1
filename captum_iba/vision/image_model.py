"""A classifier of images: inputs to logits, the names of its classes, and where it is loaded from."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captum_iba._checks import check_flag, kind_of
from captum_iba._explain.fingerprint import (
    RememberedFingerprint,
    add_part,
    model_fingerprint,
    statistics_fingerprint,
)
from captum_iba._explain.json_result import provenance
from captum_iba._explain.model import check_device, model_name
from captum_iba._reading.decision import labels_beside
from captum_iba._warnings import warn_user
from captum_iba.attr._model.guard import ModuleGuard
from captum_iba.attr.feature_statistics import FeatureStatistics
from captum_iba.attr.losses import NoLogitsError, logits_of, may_be_probabilities
from captum_iba.vision.images import Transform

_OF_DEVICES = ("CUDA", "CUBLAS", "CUDNN")


class ImageClassifier:
    """A model that gives logits for images, and its transform.

    Args:
        model (nn.Module): Maps inputs (B, 3, H, W) to logits (B, C), to an output with ``.logits``, or to a tuple that
            begins with them.
        transform (Callable, optional): Makes an input (3, H, W) of a PIL image.
        labels (sequence or mapping of str, optional): Names of the classes. Default: those of ``model.config``, or
            numbers.
        multi_label (bool, optional): Whether each class has a probability of its own, the sigmoid of its logit.
            Default: as ``model.config.problem_type`` says; else the classes compete.

    Raises:
        TypeError: The model is no module, or the transform no function.
    """

    def __init__(
        self,
        model: nn.Module,
        transform: Transform | None = None,
        labels: Sequence[str] | Mapping[int, str] | None = None,
        multi_label: bool | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model is {kind_of(model)}, expected a torch.nn.Module of (B, 3, H, W) to logits")
        if transform is not None and not callable(transform):
            raise TypeError(f"transform is {kind_of(transform)}, expected a function of a PIL image, or None")
        self.model, self.transform = model, transform
        config = getattr(model, "config", None)
        given = getattr(config, "id2label", None) if labels is None else labels
        pairs = given.items() if isinstance(given, Mapping) else enumerate(given or ())
        self._labels = {_class_number(number): label for number, label in pairs}
        # A mapping may name some classes only.
        self._n_labels = None if given is None or isinstance(given, Mapping) else len(given)
        of_config = getattr(config, "problem_type", None) == "multi_label_classification"
        if multi_label is not None:
            check_flag("multi_label", multi_label)
        self.multi_label = of_config if multi_label is None else multi_label
        self.loss = "nll" if self.multi_label else "cross_entropy"
        self._warned = False
        self._fingerprint = RememberedFingerprint()
        self.name = model_name(model)

    def provenance(self, statistics: Sequence[FeatureStatistics] | None = None) -> dict[str, str]:
        """Versions, device and precision, and the fingerprints of the weights and of the statistics of layers."""
        if not [*self.model.parameters()]:
            return {}
        known = {} if statistics is None else {"statistics_fingerprint": statistics_fingerprint(statistics)}
        return {**provenance(self.model, self._fingerprint.of(self.model)), **known}

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next((tensor.device for tensor in self._tensors()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the model."""
        return next((tensor.dtype for tensor in self._tensors() if tensor.is_floating_point()), torch.float32)

    def label(self, number: int) -> str:
        """Name of a class."""
        return str(self._labels.get(number, number))

    def logits(self, images: Tensor) -> Tensor:
        """Logits of a batch, (B, C).

        Raises:
            ValueError: The model gives something else.
        """
        try:
            logits, are_logarithms = logits_of(self.model(images.clone()), len(images))  # a model may write into them
        except NoLogitsError as error:
            raise ValueError(f"model {self.name} gives {error}, for inputs of shape {tuple(images.shape)}") from None
        if self._n_labels not in (None, logits.shape[1]):
            raise ValueError(f"labels has {self._n_labels} names, expected one for each of {logits.shape[1]} classes")
        if are_logarithms:
            self._warn_once(f"model {self.name} gives probabilities, expected logits; their logarithms are taken")
        elif may_be_probabilities(logits.detach()):
            self._warn_once(
                f"model {self.name} gives values between 0 and 1 only, which are used as logits; if they are the "
                "probabilities of independent classes (a sigmoid), let it return the logits before it, and pass "
                "multi_label=True"
            )
        return logits

    def class_scores(self, images: Tensor) -> Tensor:
        """Input of :attr:`loss` for a batch, (B, C): logits, or log-probabilities if :attr:`multi_label`."""
        logits = self.logits(images)
        return F.logsigmoid(logits.float()) if self.multi_label else logits

    def _warn_once(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            warn_user(message)

    def probabilities(self, images: Tensor, batch_size: int) -> Tensor:
        """Probabilities of the classes, (B, C), float64, on the CPU."""
        with ModuleGuard(self.model) as guard, guard.watching(), torch.no_grad():
            parts = []
            for part in torch.split(images, batch_size):
                logits = self.logits(part).float().cpu().double()
                parts.append(logits.sigmoid() if self.multi_label else logits.softmax(-1))
                guard.restore_state()  # no pass depends on those before it
        return torch.cat(parts)

    def checked_probabilities(self, images: Tensor, batch_size: int) -> Tensor:
        """The same for images of a user; ValueError for such that the model does not take."""
        try:
            return self.probabilities(images, batch_size)
        except (RuntimeError, AssertionError, ValueError) as error:
            if isinstance(error, torch.OutOfMemoryError) or any(name in str(error) for name in _OF_DEVICES):
                raise
            of_size = "size" in str(error) and not str(error).startswith("model ")
            if isinstance(error, ValueError) and not of_size:
                raise
            raise ValueError(
                f"images: the model does not take inputs of shape {tuple(images.shape[1:])}: {error}"
            ) from error

    def target_number(self, target: int | str, n_classes: int) -> int:
        """The number of a class that is given by number or label.

        Raises:
            ValueError: There is no such class, or several of one label.
            TypeError: Something else.
        """
        if isinstance(target, str):
            same = [number for number, label in self._labels.items() if str(label).casefold() == target.casefold()]
            if len(same) == 1:
                return self.target_number(int(same[0]), n_classes)
            if target.isdecimal() and not same:
                return self.target_number(int(target), n_classes)
            some = ", ".join(str(label) for label in list(self._labels.values())[:10]) or "numbers"
            found = "is the label of several classes" if same else "is no label of the model"
            raise ValueError(f"target is {target!r}, which {found}; expected one of {n_classes} classes: {some}")
        if isinstance(target, bool) or not isinstance(target, Integral):
            raise TypeError(f"target is {target!r}, expected the number or label of a class")
        if not 0 <= target < n_classes:
            raise ValueError(f"target is {target}, expected a class from 0 to {n_classes - 1}")
        return int(target)

    def other_labels(self, probabilities: Tensor, target: int) -> tuple[tuple[str, float], ...]:
        """Of several labels at once those beside the target that are predicted, with their probabilities."""
        if not self.multi_label:
            return ()
        return labels_beside(
            [self.label(number) for number in range(len(probabilities))], probabilities.tolist(), target
        )

    def fingerprint(self) -> str:
        """Digest of the model's weights and configuration and of the transform; computed anew."""
        digest = hashlib.sha256()
        add_part(digest, model_fingerprint(self.model))
        described = getattr(self.transform, "to_json_string", None)
        text = described() if callable(described) else repr(self.transform)
        # A function's own text has its address, which is another one in every process.
        kind = self.transform if hasattr(self.transform, "__qualname__") else type(self.transform)
        named = f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', '')}"
        add_part(digest, text if " at 0x" not in text else named)
        return digest.hexdigest()

    def _tensors(self) -> list[Tensor]:
        return [*self.model.parameters(), *self.model.buffers()]


def _class_number(key: Any) -> Any:
    """The number of a class, which JSON turns into a string."""
    return int(key) if isinstance(key, str) and key.isdecimal() else key


def load_image_classifier(
    name_or_path: str | os.PathLike[str],
    device: str | int | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> ImageClassifier:
    """An image classifier of ``transformers`` with its image processor as the transform.

    Args:
        name_or_path (str or path): A folder, or a name on the Hugging Face hub.
        device (str, int, torch.device or None): Device of the model; a number is a CUDA device. Default: the CPU.
        dtype (torch.dtype): Precision of the weights. Default: ``torch.float32``.

    Raises:
        ValueError: The checkpoint has no classification head, a file is damaged, or torch does not find the device.
        OSError: There is no such folder or name, or it has no image processor.
    """
    from captum_iba._explain.pretrained import load_pretrained

    try:
        from transformers import AutoImageProcessor, AutoModelForImageClassification
    except ModuleNotFoundError as error:
        if error.name is None:  # of transformers, where torchvision does not fit torch: its message says more
            raise
        raise ModuleNotFoundError(
            f"from_pretrained needs {error.name}, which is not installed: pip install 'captum-iba[vision]'",
            name=error.name,
        ) from error
    name = os.fspath(name_or_path)
    try:
        model, processor, missing = load_pretrained(
            AutoModelForImageClassification, AutoImageProcessor, name, device, dtype=dtype
        )
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise
        raise ValueError(f"model: {name} is no classifier of images: {str(error).splitlines()[0]}") from error
    if missing:
        raise ValueError(
            f"model: {name} is not a trained image classifier, its file lacks {', '.join(missing[:3])}; expected a "
            "folder of AutoModelForImageClassification.save_pretrained"
        )
    return ImageClassifier(model, processor)


def load_torchvision_classifier(
    name: str,
    weights: str | os.PathLike[str] | None = None,
    device: str | int | torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> ImageClassifier:
    """A classifier of ``torchvision.models`` with the transform and the classes of its trained weights.

    Args:
        name (str): Name of the architecture, such as ``"resnet50"``.
        weights (path, optional): A safetensors file of its ``state_dict``. Default: the weights of torchvision, which
            it downloads once.
        device, dtype: As for :func:`load_image_classifier`.

    Raises:
        ValueError: There is no such classifier, or the file is not of it.
        FileNotFoundError: There is no such file.
        ModuleNotFoundError: torchvision is not installed.
    """
    check_device(device)
    try:
        models: Any = importlib.import_module("torchvision.models")
    except RuntimeError as error:  # operator torchvision::nms does not exist
        raise RuntimeError(
            f"torchvision cannot be imported ({error}): it is not the build for the installed torch, version "
            f"{torch.__version__}; install both from one index"
        ) from error
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{name!r} is loaded by torchvision, which is not installed: pip install torchvision", name=error.name
        ) from error
    if name not in models.list_models(module=models):
        raise ValueError(f"model is {name!r}, which is no classifier of torchvision.models, such as resnet50")
    trained = models.get_model_weights(name).DEFAULT
    model = models.get_model(name, weights=trained if weights is None else None)
    if weights is not None:
        _load_weights(model, Path(weights))
    model = model.eval().to(device=device, dtype=dtype)
    classifier = ImageClassifier(model, trained.transforms(), trained.meta["categories"])
    classifier.name = name
    return classifier


def _load_weights(model: nn.Module, path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise FileNotFoundError(f"weights is {path}, which does not exist, expected a safetensors file")
    try:
        model.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError) as error:
        line = " ".join(str(error).split())
        line = line if len(line) < 200 else f"{line[:200]}..."
        raise ValueError(f"weights is {path}, which are not those of {type(model).__name__}: {line}") from error
