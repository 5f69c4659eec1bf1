"""How much faster several workers of Ray are than one: ``python -m benchmarks.workers --data FILE``.

Counted are tokens a second from when as many chunks are finished as there are workers to the last chunk, so that
neither Ray's start nor, if the workers load alike, the loading of models counts. Set ``OMP_NUM_THREADS=1``, so that
each worker has one thread.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

from captum_iba.compare import ComparisonConfig, prepare
from captum_iba.compare.parallel import RayExecutor


def main() -> None:
    """Run the same comparison with each number of workers, and print the rates."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", help="default: the embedded one")
    parser.add_argument("--methods", default="iba")
    parser.add_argument("--examples", type=int, default=96)
    parser.add_argument("--chunk-size", type=int, default=2)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    config = ComparisonConfig(
        given.data,
        given.model,
        given.methods,
        examples=given.examples,
        chunk_size=given.chunk_size,
        random_seeds=1,
        max_length=128,
    )
    print(f"threads a worker {torch.get_num_threads()}; {time.strftime('%Y-%m-%d')}; torch {torch.__version__}")
    print("| workers | tokens/s | against the first |\n|---|---|---|")
    first = None
    for workers in given.workers:
        with tempfile.TemporaryDirectory() as folder:
            steps = prepare(config, Path(folder), executor=RayExecutor(workers=workers)).run()
            done = [(time.perf_counter(), step.tokens) for step in steps]
        begun = done[workers - 1][0]
        rate = sum(tokens for _, tokens in done[workers:]) / (done[-1][0] - begun)
        first = first or rate
        print(f"| {workers} | {rate:.1f} | {rate / first:.2f} |", flush=True)


if __name__ == "__main__":
    main()
