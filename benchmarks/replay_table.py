"""Which architectures are replayed, and how far replayed attributions are from those of whole passes.

Prints a table in Markdown and writes it to ``docs/results/replay_table.md``. The models are tiny and have random
weights; whether one can be replayed depends on how it is built, not on its size.

    python -m benchmarks.replay_table
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import captum_iba
from captum_iba import FeatureStatistics, InformationBottleneckAttribution

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "python -m benchmarks.replay_table"
STEPS, DRAWS = 10, 4
HEADER = ("Architecture", "Layer", "Replayed", "Why not", "Largest deviation", "Arithmetic a step")


def architectures() -> ModuleType:
    """The tiny models of the tests; ``tests`` is no package."""
    spec = importlib.util.spec_from_file_location("architectures", ROOT / "tests" / "attr" / "architectures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["architectures"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def operations(attribute: Callable[..., Tensor]) -> int:
    """Multiplications and additions of one step more, whatever comes before the first."""
    counts = []
    for steps in (1, 2):
        with FlopCounterMode(display=False) as counter:
            attribute(n_steps=steps)
        counts.append(counter.get_total_flops())
    return counts[1] - counts[0]


def row(name: str, architecture: Any) -> tuple[str, ...]:
    """One line of the table."""
    statistics = FeatureStatistics.estimate(
        architecture.forward, architecture.layer, [architecture.inputs], layer_call=architecture.layer_call
    )

    def attribute(replay: bool = True, n_steps: int = STEPS) -> Tensor:
        iba = InformationBottleneckAttribution(architecture.forward, architecture.layer, statistics=statistics)
        bits = iba.attribute(
            architecture.inputs,
            target=[0, 1, 2],
            bottleneck_mask=architecture.mask,
            layer_call=architecture.layer_call,
            beta=0.01,
            n_steps=n_steps,
            n_samples=DRAWS,
            replay=replay,
        )
        return bits[0] if isinstance(bits, tuple) else bits

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bits = attribute()
    reasons = [str(one.message).split(": ", 1)[1] for one in caught if "is not replayed" in str(one.message)]
    whole = attribute(replay=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        share = operations(attribute) / operations(lambda n_steps: attribute(False, n_steps))
    deviation = float((bits - whole).abs().max() / whole.abs().max())
    call = "" if architecture.layer_call == -1 else f", call {architecture.layer_call}"
    return (
        name,
        f"`{architecture.layer_name}`{call}",
        "no" if reasons else "yes",
        reasons[0] if reasons else "",
        f"{deviation:.1e}" if deviation else "0",
        f"{share:.0%}",
    )


def table(rows: list[tuple[str, ...]]) -> str:
    """In Markdown."""
    lines = [HEADER, ("---",) * len(HEADER), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def document(content: str) -> str:
    """The page of the documentation."""
    import transformers

    return f"""# What is replayed

Made by `{COMMAND}` with captum_iba {captum_iba.__version__}, torch {torch.__version__.split("+")[0]} and transformers
{transformers.__version__}, in float32 on the CPU; any change is overwritten.

Tiny models with random weights (four blocks, 32 hidden units), three texts of different lengths in one batch, {STEPS}
steps of {DRAWS} noise samples; the bottleneck is on the output of the layer. The deviation is between the bits of
replayed and of full passes, relative to the largest; where nothing is replayed there is nothing to deviate. The last
column is the arithmetic of a step, forward and backward, against that of a step that runs in full.

{content}
"""


def main() -> None:
    """Print the table, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    page = ROOT / "docs" / "results" / "replay_table.md"
    parser.add_argument("--out", type=Path, default=page, help="where the page goes")
    out = parser.parse_args().out
    models = architectures()
    content = table([row(name, models.build(name)) for name in models.BUILDERS])
    print(content)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.tmp")
    temporary.write_text(document(content), encoding="utf-8")
    os.replace(temporary, out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
