"""The classifiers of torchvision, from wherever it lies, also where its compiled operators cannot be loaded.

PyPI's torchvision for Linux is compiled for a torch with CUDA. Beside a torch without, its operators do not load, and
then not even ``import torchvision`` works: it describes two operators that nothing has declared. As transformers
imports a torchvision that it finds, such a one in the environment would break transformers, too. So the Makefile puts
it into a folder of its own, ``vision`` in the environment, which is on the path only while it is imported here.
"""

import importlib
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(sys.prefix) / "vision"
# What torchvision describes whether it was compiled in or not; detection models need these, classifiers do not.
OPERATORS = ("nms", "qnms")
_declared = []  # a library that is collected takes its declarations with it


def torchvision_models():
    """``torchvision.models``; where there is no torchvision, the test is skipped."""
    sys.path.append(str(FOLDER))
    try:
        return _imported()
    finally:
        sys.path.remove(str(FOLDER))


def _imported():
    try:
        return importlib.import_module("torchvision.models")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        pytest.skip("torchvision is not installed")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error) or _declared:
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")
    _declared.append(library)
    for name in OPERATORS:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return importlib.import_module("torchvision.models")
