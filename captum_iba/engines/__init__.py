"""Where work is done: in this process, or by workers beside it, on this machine or a cluster.

::

    >>> from captum_iba.compare import Request, prepare
    >>> from captum_iba.engines import Ray
    >>> comparison = prepare(Request("test.jsonl.gz", examples=50), Path("results"), engine=Ray(workers=2))
    >>> for step in comparison.go():
    ...     print(step)
"""

from captum_iba.engines.base import Engine, EngineError, Pool, Worker, in_order
from captum_iba.engines.local import Local
from captum_iba.engines.on_ray import Ray

__all__ = ["Engine", "EngineError", "Local", "Pool", "Ray", "Worker", "in_order"]
