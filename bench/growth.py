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
from typing import Any

from bench.datasets import Prepared
from bench.process import run_measured
from bench.report import table
from bench.run import DEFAULT_WORK, FAILURES, Record, available, begin, line, measure
from bench.solvers import parse_spec

KINDS = {"clustered": 0.0, "noisy": 0.1}  # share of wrong labels
SIZES = (100_000, 1_000_000, 10_000_000, 100_000_000)
SPECS = ("ooc-fw:memory=2GiB,tol=1e-2", "intelex-svc:tol=1e-2")
FIELDS = {"seconds": 1, "kernel_evaluations": 1, "peak_rss_bytes": 1e-6}  # factors in the figure
N_FEATURES, N_CENTRES = 8, 64
SPREAD = 0.05  # standard deviation of a column around a centre; centres are in the unit cube
C, GAMMA = 10.0, 4.0
TEST_ROWS = 20_000
BLOCK_ROWS = 1 << 18
FITTED = 3  # largest sizes through which an exponent is fitted; smaller ones measure the start


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
    with (folder / "X.npy").open("wb") as rows, (folder / "y.npy").open("wb") as labels:
        for file, descr, shape in ((rows, "<f4", (n_rows, N_FEATURES)), (labels, "|i1", (n_rows,))):
            header = {"descr": descr, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, n_rows, BLOCK_ROWS):
            block = draw(min(BLOCK_ROWS, n_rows - start))
            rows.write(block[0].tobytes())
            labels.write(block[1].tobytes())


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


def exponents(records: Sequence[Record]) -> dict[tuple[str, str, str], float]:
    """By kind, spec and field: p of the power n^p of the rows that fits the largest sizes best."""
    points: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for record in records:
        for field in FIELDS:
            if record.get(field) and record["status"] not in FAILURES:
                key = record["dataset"], record["spec"], field
                point = math.log(record["n_rows"]), math.log(record[field])
                points.setdefault(key, []).append(point)
    return {
        key: statistics.linear_regression(*zip(*own[-FITTED:], strict=True)).slope
        for key, own in points.items()
        if len(own) > 1
    }


def draw(records: Sequence[Record], path: Path) -> None:
    """Write a PNG: a row for each kind, every field against the rows."""
    from matplotlib.figure import Figure

    fitted, kinds = exponents(records), list(dict.fromkeys(one["dataset"] for one in records))
    figure = Figure(figsize=(13, 3.6 * len(kinds)), layout="constrained")
    axes = figure.subplots(len(kinds), len(FIELDS), squeeze=False)
    for kind, row in zip(kinds, axes, strict=True):
        for ax, (field, factor) in zip(row, FIELDS.items(), strict=True):
            for spec in dict.fromkeys(one["spec"] for one in records):
                own = [one for one in records if (one["dataset"], one["spec"]) == (kind, spec)]
                own = [one for one in own if one.get(field) and one["status"] not in FAILURES]
                power = fitted.get((kind, spec, field), math.nan)
                values = [factor * one[field] for one in own]
                label = f"{spec.partition(':')[0]}, n^{power:.2f}"
                ax.plot([one["n_rows"] for one in own], values, "o-", label=label)
            unit = "peak memory (MB)" if factor != 1 else field.replace("_", " ")
            ax.set(title=kind, xlabel="rows", ylabel=unit, xscale="log", yscale="log")
            ax.grid(alpha=0.3)
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
    lines = [[*key, f"{power:.2f}"] for key, power in exponents(records).items()]
    print(table(["kind", "solver", "field", "power of the rows"], lines))
    draw(records, output.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
