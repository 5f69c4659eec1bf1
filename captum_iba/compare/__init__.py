"""Methods compared on a dataset: records, tables, curves and a report (needs ``captum-iba[compare]``).

::

    >>> from captum_iba.compare import ComparisonConfig, prepare, write_report
    >>> comparison = prepare(ComparisonConfig("test.csv", methods=["iba", "ig", "random"]), Path("results"))
    >>> for step in comparison.run():
    ...     print(step)
    >>> print(*write_report(Path("results")).lines, sep="\\n")
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from captum_iba.compare.config import ComparisonConfig, MethodRun
    from captum_iba.compare.image_comparison import ImageComparison, ImageRow, compare_images
    from captum_iba.compare.prompt_comparison import PromptComparison, PromptRow, compare_prompts
    from captum_iba.compare.records import Results, read_results
    from captum_iba.compare.report import Summary, write_report
    from captum_iba.compare.run import Comparison, FinishedChunk, prepare
    from captum_iba.compare.text_comparison import TextComparison, TextRow, compare_texts

__all__ = [
    "Comparison",
    "ComparisonConfig",
    "FinishedChunk",
    "ImageComparison",
    "ImageRow",
    "MethodRun",
    "PromptComparison",
    "PromptRow",
    "Results",
    "Summary",
    "TextComparison",
    "TextRow",
    "compare_images",
    "compare_prompts",
    "compare_texts",
    "prepare",
    "read_results",
    "write_report",
]

_MODULES = {"ComparisonConfig": "config", "MethodRun": "config", "Results": "records", "read_results": "records"}
_MODULES |= dict.fromkeys(("ImageComparison", "ImageRow", "compare_images"), "image_comparison")
_MODULES |= dict.fromkeys(("PromptComparison", "PromptRow", "compare_prompts"), "prompt_comparison")
_MODULES |= dict.fromkeys(("TextComparison", "TextRow", "compare_texts"), "text_comparison")
_MODULES |= {
    "Summary": "report",
    "write_report": "report",
    "Comparison": "run",
    "FinishedChunk": "run",
    "prepare": "run",
}


def __getattr__(name: str) -> object:
    # Late, because captum_iba.compare.parallel does without the libraries of the extra: `explain` uses it, too.
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
