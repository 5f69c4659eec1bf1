"""The options that say where the work is done."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from captum_iba.engines import Engine


class EngineName(str, Enum):
    """Where the work is done."""

    local = "local"
    ray = "ray"


EngineOption = Annotated[
    EngineName, typer.Option("--engine", help="local: this process; ray: workers, one a GPU or for so many CPUs.")
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address", help="Of a Ray cluster, auto or host:6379.", show_default="Ray starts on this machine alone"
    ),
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Workers of Ray.", show_default="as many as there is room for")
]


def find_engine(name: EngineName, address: str | None, workers: int | None) -> Engine:
    """The engine that the options mean.

    Raises:
        typer.BadParameter: An option of Ray for another engine.
        ModuleNotFoundError: Ray is not installed.
    """
    from captum_iba.engines import Local, Ray

    if name is EngineName.ray:
        return Ray(address, workers)
    for option, value in (("--address", address), ("--workers", workers)):
        if value is not None:
            raise typer.BadParameter(f"{option} is for --engine ray, the engine is {name.value}.")
    return Local()
