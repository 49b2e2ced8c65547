"""The papers' qualitative findings on real data: ``python -m bench.findings``.

Prints a Markdown page. All runs stop at an absolute duality gap, as in the papers, and with
f = 1/2 alpha' Q alpha, as in the PARTAN and randomization papers:

1. PARTAN takes a half to a third of FW's iterations, and hardly fewer where nearly every one of
   them brings in a new vertex of the support, as on the Adult sets (the paper finds the same).
2. FW's iterations grow tenfold with each decade of tolerance, those of MFW and SWAP far less.
3. Smaller samples take fewer and cheaper iterations and may stop early: their own gap passes the
   test, the exact one need not.
4. Drop steps prune the support: vertices that came in by mistake go out again.

Counts, not times, so that a busy machine gives the same page.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.datasets import DATASETS, DEFAULT_DATA, prepare
from bench.report import table
from bench.run import DEFAULT_WORK
from bench.storage import read_labelled
from bench.verify import squared_hinge_gaps
from ooc_fw.data.sources import open_source
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.options import TrainOptions
from ooc_fw.solver.loop import solve
from ooc_fw.solver.state import Solution, Status, StepKind

SETS = ("w7a", "ijcnn1", "a8a")
TOLERANCE = 1e-4  # the papers'
SAMPLED_TOLERANCE = 3e-4  # keeps the largest samples affordable
DECADES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
FEW_ROWS = 2000  # on which steps are cheap enough for FW at tight tolerances
SAMPLE_SIZES = (59, 194, 500)
LABELS = {"fw": "FW", "partan": "PARTAN", "mfw": "MFW", "swap": "SWAP", "swap2": "SWAP-2o"}


@dataclass(frozen=True)
class Data:
    """A set in RAM, in the order of its shuffled file; labels are -1 or +1."""

    name: str
    X: Any
    y: npt.NDArray[np.float64]
    C: float
    gamma: float

    def head(self, rows: int) -> Data:
        """Only the first `rows` rows: a random sample, since the file is shuffled."""
        return replace(self, X=self.X[:rows], y=self.y[:rows])


def load(name: str, data: Path, work: Path) -> Data:
    """Convert a set if need be, and read it."""
    prepared = prepare(DATASETS[name], data, work)
    X, labels = read_labelled(prepared.train, np.float32)
    y = np.where(labels == labels.max(), 1.0, -1.0)
    return Data(name, X, y, prepared.C, prepared.gamma)


def train(data: Data, **options: Any) -> Solution:
    """Solve with an absolute stopping test and no certificate."""
    chosen = TrainOptions(stopping="absolute", certify=False, C=data.C, **options)
    with open_source(data.X, data.y) as source:
        kernel = make_kernel("rbf", gamma=data.gamma)
        return solve(source, data.y.astype(np.int8), kernel, chosen)


def iterations_by_tolerance(
    data: Data, methods: Sequence[str], max_iter: int
) -> dict[str, list[int | None]]:
    """Iterations of each method at each of `DECADES`; None where `max_iter` was too few."""
    counts: dict[str, list[int | None]] = {}
    for method in methods:
        row = counts.setdefault(method, [])
        for tol in DECADES:
            if row and row[-1] is None:
                row.append(None)
                continue
            solution = train(data, method=method, lmo="full", tol=tol, max_iter=max_iter)
            done = solution.status is Status.CONVERGED
            row.append(solution.iterations if done else None)
    return counts


def growth(counts: Sequence[int | None]) -> float | None:
    """Factor by which iterations grew over the last decade that was reached."""
    known = [count for count in counts if count is not None]
    return known[-1] / known[-2] if len(known) > 1 else None


# -- the four tables -----------------------------------------------------------------------------


def partan_table(sets: Sequence[Data]) -> str:
    """Finding 1."""
    rows = []
    for data in sets:
        fw, partan = (
            train(data, method=method, lmo="full", tol=TOLERANCE) for method in ("fw", "partan")
        )
        ratio = f"{fw.iterations / partan.iterations:.1f}"
        sizes = len(fw.alpha), len(partan.alpha)
        rows.append([data.name, fw.iterations, partan.iterations, ratio, *sizes])
    heads = ["FW", "PARTAN", "FW / PARTAN", "support of FW", "support of PARTAN"]
    return table(["set", *heads], rows)


def tolerance_table(sets: Sequence[Data], max_iter: int) -> str:
    """Finding 2."""
    rows = []
    for data in sets:
        counts = iterations_by_tolerance(
            data.head(FEW_ROWS), ("fw", "mfw", "swap", "swap2"), max_iter
        )
        for method, row in counts.items():
            factor = growth(row)
            rows.append(
                [
                    data.name,
                    LABELS[method],
                    *[f"> {max_iter}" if count is None else count for count in row],
                    "" if factor is None else f"{factor:.1f}",
                ]
            )
    heads = [f"{tol:.0e}" for tol in DECADES]
    return table(["set", "method", *heads, "growth over the last decade"], rows)


def sample_table(sets: Sequence[Data], seeds: int) -> str:
    """Finding 3."""
    rows: list[list[object]] = []
    for data in sets:
        for size in (*SAMPLE_SIZES, None):
            runs = list(_sampled_runs(data, size, seeds if size else 1))
            iterations, values, own, exact = (
                statistics.median(column) for column in zip(*runs, strict=True)
            )
            rows.append(
                [
                    data.name,
                    size or "all rows",
                    f"{iterations:.0f}",
                    f"{values / iterations:.0f}",
                    f"{own:.1e}",
                    f"{exact:.1e}",
                ]
            )
    heads = ["iterations", "kernel values each", "own gap", "exact gap"]
    return table(["set", "sample", *heads], rows)


def _sampled_runs(data: Data, size: int | None, seeds: int) -> Iterator[tuple[float, ...]]:
    """Iterations, kernel values, own gap and exact gap, by seed."""
    oracle = {"lmo": "full"} if size is None else {"lmo": "sampled", "sample_size": size}
    for seed in range(seeds):
        solution = train(data, method="fw", tol=SAMPLED_TOLERANCE, seed=seed, **oracle)
        gaps = squared_hinge_gaps(data.X, data.y, solution.rows, solution.alpha, data.C, data.gamma)
        assert solution.sampled_gap is not None
        yield (
            solution.iterations,
            solution.kernel_evaluations,
            solution.sampled_gap * solution.rho,
            gaps.relative * solution.rho,
        )


def drop_table(sets: Sequence[Data], max_iter: int) -> str:
    """Finding 4: a small sample proposes many vertices that the solution does not need."""
    rows = []
    for data in sets:
        few = data.head(FEW_ROWS)
        options = {"lmo": "sampled", "sample_size": SAMPLE_SIZES[0], "tol": DECADES[-2]}
        for method in ("fw", "mfw", "swap", "swap2"):
            solution = train(few, method=method, max_iter=max_iter, **options)
            rows.append(
                [
                    data.name,
                    LABELS[method],
                    solution.iterations,
                    solution.steps[StepKind.DROP],
                    len(solution.alpha),
                    f"{1e3 * solution.objective:.5f}",
                ]
            )
    return table(["set", "method", "iterations", "drops", "support", "1000 f"], rows)


def page(sets: Sequence[Data], max_iter: int, seeds: int) -> Iterator[str]:
    """Parts of the page, as they are done."""
    sizes = ", ".join(f"{data.name} ({data.X.shape[0]} rows)" for data in sets)
    yield f"# The papers' findings on {sizes}"
    yield f"## Iterations to an absolute gap of {TOLERANCE:g}, full oracle"
    yield partan_table(sets)
    yield f"## Iterations by absolute gap, full oracle, {FEW_ROWS} rows"
    yield tolerance_table(sets, max_iter)
    yield (
        f"## FW with samples, stopped at an own gap of {SAMPLED_TOLERANCE:g}\n\n"
        f"Medians of {seeds} seeds. The own gap is over one more sample and the active set, the "
        "exact gap over all rows, by brute force in float64. The full oracle keeps the gradient of "
        "every row, which makes its iterations a column each, whatever the support."
    )
    yield sample_table(sets, seeds)
    yield (
        f"## Support with and without drop steps, samples of {SAMPLE_SIZES[0]}, "
        f"absolute gap {DECADES[-2]:g}, {FEW_ROWS} rows"
    )
    yield drop_table(sets, max_iter)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the page."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.findings", description="Show the papers' findings as tables."
    )
    parser.add_argument("--sets", nargs="+", default=SETS, metavar="SET", choices=list(DATASETS))
    parser.add_argument("--rows", type=int, help="use only so many rows of each set")
    parser.add_argument(
        "--max-iter",
        type=int,
        default=120_000,
        help="where tables 2 and 4 give up (default: 120000)",
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs a sample size (default: 3)")
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder of the real sets")
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK, help="folder of converted files")
    args = parser.parse_args(argv)
    sets = [load(name, args.data, args.work) for name in args.sets]
    if args.rows is not None:
        sets = [data.head(args.rows) for data in sets]
    for part in page(sets, args.max_iter, args.seeds):
        print(part, end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
