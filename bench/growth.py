"""How time, kernel values and memory grow with the rows: ``python -m bench.growth``.

Rows of eight columns are made around random centres, each of one class: of all rows (clustered), or
with a tenth of the labels wrong (noisy), so that support vectors grow with the rows. They are kept
as ``X.npy`` beside ``y.npy`` while solvers run on them, of which each goes up to the first size at
which it fails. Imports nothing heavy; see `bench.process`.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from bench.datasets import Prepared
from bench.process import run_measured
from bench.report import table
from bench.run import DEFAULT_WORK, FAILURES, Record, available, begin, line, measure
from bench.solvers import parse_spec

KINDS = {"clustered": 0.0, "noisy": 0.1}  # share of wrong labels
SIZES = (100_000, 1_000_000, 10_000_000, 100_000_000)
SPECS = ("ooc-fw:memory=2GiB,tol=1e-2", "intelex-svc:tol=1e-2")
FIELDS = ("seconds", "kernel_evaluations", "peak_rss_bytes")
N_FEATURES, N_CENTRES = 8, 64
SPREAD = 0.03  # standard deviation of a column around a centre; centres are in the unit cube
C, GAMMA = 10.0, 4.0
TEST_ROWS = 20_000
BLOCK_ROWS = 1 << 18
FITTED = 3  # largest sizes through which an exponent is fitted; smaller ones measure the start

Key: TypeAlias = tuple[str, str, str]  # kind, spec, field


def make(kind: str, n_rows: int, path: str) -> None:
    """Write rows to train on, and ``test.h5``; the same kind and number give the same rows."""
    import h5py
    import numpy as np

    rng = np.random.default_rng(0)
    centres = rng.random((N_CENTRES, N_FEATURES))

    def draw(n: int) -> tuple[Any, Any]:
        places = rng.integers(N_CENTRES, size=n)
        rows = centres[places] + SPREAD * rng.standard_normal((n, N_FEATURES))
        wrong = rng.random(n) < KINDS[kind]
        return rows.astype(np.float32), ((places + wrong) % 2).astype(np.int8)

    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "test.h5", "w") as test:
        test["X"], test["y"] = draw(TEST_ROWS)
    labels = []
    with (folder / "X.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (n_rows, N_FEATURES)}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, n_rows, BLOCK_ROWS):
            rows, part = draw(min(BLOCK_ROWS, n_rows - start))
            file.write(rows.tobytes())
            labels.append(part)
    np.save(folder / "y.npy", np.concatenate(labels))


def grow(kind: str, args: argparse.Namespace, common: Record) -> Iterator[Record]:
    """Records of all solvers on one kind of rows, size by size."""
    solvers = available([(spec, *parse_spec(spec)) for spec in args.solvers])
    for n_rows in args.rows:
        folder = (args.work / f"{kind}-{n_rows}").resolve()
        making = f"from bench.growth import make; make({kind!r}, {n_rows}, {str(folder)!r})"
        run_measured([sys.executable, "-c", making])
        files = folder / "X.npy", folder / "test.h5"
        prepared = Prepared(kind, *files, C, GAMMA, n_rows, N_FEATURES)
        for chosen in list(solvers):
            record = measure(prepared, chosen, common, timeout_s=args.timeout)
            if record["status"] in FAILURES:
                solvers.remove(chosen)
            yield record
        shutil.rmtree(folder)


def series(records: Sequence[Record]) -> dict[Key, list[tuple[int, float]]]:
    """Rows and values of each field, by kind and spec."""
    found: dict[Key, list[tuple[int, float]]] = {}
    for one in records:
        for field in FIELDS:
            if one.get(field) and one["status"] not in FAILURES:
                key = one["dataset"], one["spec"], field
                found.setdefault(key, []).append((one["n_rows"], one[field]))
    return found


def exponent(points: Sequence[tuple[int, float]]) -> float:
    """The p of the power n^p of the rows that fits the largest sizes best."""
    if len(points) < 2:
        return math.nan
    logs = [[math.log(number) for number in point] for point in points[-FITTED:]]
    return statistics.linear_regression(*zip(*logs, strict=True)).slope


def draw(records: Sequence[Record], path: Path) -> None:
    """Write a PNG: a row for each kind, every field against the rows."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(one["dataset"] for one in records))
    figure = Figure(figsize=(13, 3.6 * len(kinds)), layout="constrained")
    axes = figure.subplots(len(kinds), len(FIELDS), squeeze=False)
    for (kind, spec, field), points in series(records).items():
        ax = axes[kinds.index(kind), FIELDS.index(field)]
        label = f"{spec.partition(':')[0]}, n^{exponent(points):.2f}"
        ax.loglog(*zip(*points, strict=True), "o-", label=label)
        ax.set(title=kind, xlabel="rows", ylabel=field.replace("_", " "))
        ax.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, then print the exponents and draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    add = parser.add_argument
    add("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    add("--rows", nargs="+", type=int, default=SIZES, help="increasing (1e8 take 3.3 GB of disk)")
    add("--solvers", nargs="+", metavar="SPEC", default=SPECS, help="as of bench.run")
    add("--threads", type=int, help="CPUs a run may use (default: all)")
    add("--timeout", type=float, default=1800, metavar="S", help="wall time a run (1800)")
    add("--work", type=Path, default=DEFAULT_WORK, help="folder of the rows")
    add("--output", type=Path, help="records, beside which goes the figure (default: in --work)")
    args = parser.parse_args(argv)
    output = args.output or args.work / "growth.jsonl"
    output.parent.mkdir(parents=True, exist_ok=True)
    common = begin("growth", "classification", args.threads)
    common |= {"turn": 0, "warm_up": False, "seed": 0}
    records = []
    with output.open("w") as file:
        for record in (one for kind in args.kinds for one in grow(kind, args, common)):
            records.append(record)
            print(f"{record['n_rows']:,} rows  {line(record)}", flush=True)
            file.write(json.dumps(record) + "\n")
            file.flush()
    lines = [[*key, f"{exponent(points):.2f}"] for key, points in series(records).items()]
    print(table(["kind", "solver", "field", "power of the rows"], lines))
    draw(records, output.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
