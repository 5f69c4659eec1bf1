"""Methods compared on a data set: records, tables, curves and a report (needs ``captum-iba[benchmark]``).

::

    >>> from captum_iba.compare import Request, prepare, write_report
    >>> comparison = prepare(Request(data="test.jsonl.gz", methods="iba,ig,random", examples=50), Path("results"))
    >>> for step in comparison.go():
    ...     print(step)
    >>> print(*write_report(Path("results")).lines, sep="\\n")
"""

from captum_iba.compare.prepare import Request, prepare
from captum_iba.compare.report import Summary, write_report
from captum_iba.compare.results import Results, read_results
from captum_iba.compare.runner import Comparison, Step
from captum_iba.compare.timing import TimeLeft

__all__ = [
    "Comparison",
    "Request",
    "Results",
    "Step",
    "Summary",
    "TimeLeft",
    "prepare",
    "read_results",
    "write_report",
]
