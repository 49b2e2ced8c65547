"""Cross data sets and solvers: ``python -m bench.run``.

For each set every solver is run once to warm up (compiled code, file cache), then all of them in
turn, again and again, so that a machine that slows down slows all alike. Each run appends one flat
JSON object to a file. Imports nothing heavy; see `bench.process`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.datasets import DATASETS, DEFAULT_DATA, Prepared, default_sets, prepare
from bench.environment import environment
from bench.process import ROOT, ChildError, run_measured
from bench.solvers import DEFAULT_SPECS, Parameters, Problem, Solver, parse_spec
from bench.solvers.base import missing_packages

DEFAULT_WORK = Path(tempfile.gettempdir()) / "ooc-fw-bench"
DEFAULT_OUTPUT = ROOT / "bench" / "results"
RECORDS = "records.jsonl"
FAILURES = ("timeout", "failed")  # statuses of runs without figures

Chosen = tuple[str, Solver, Parameters]
Record = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for."""
    args = _parser().parse_args(argv)
    try:
        solvers = [(spec, *parse_spec(spec)) for spec in args.solvers]
        names = args.sets or default_sets(args.data)
        unknown = set(names) - set(DATASETS)
        if unknown:
            raise ValueError(f"no set is called {min(unknown)!r}; there are {', '.join(DATASETS)}")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    args.output.mkdir(parents=True, exist_ok=True)
    records = args.output / RECORDS
    cpus = limit_cpus(args.threads)
    common = {
        "session": datetime.now(UTC).isoformat(timespec="seconds"),
        **environment(),
        "threads": cpus,
        "seed": args.seed,
    }
    solvers = available(solvers)
    for name in names:
        try:
            prepared = prepare(DATASETS[name], args.data, args.work)
        except ChildError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        _run_set(prepared, solvers, args, common, records)
    if not args.no_report:
        run_measured([sys.executable, "-m", "bench.report", records.resolve()])
        print(f"wrote {args.output / 'report.md'}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.run", description="Run solvers on data sets and record the costs."
    )
    parser.add_argument(
        "--sets", nargs="+", metavar="SET", help=f"of {', '.join(DATASETS)} (default: real ones)"
    )
    parser.add_argument(
        "--solvers",
        nargs="+",
        metavar="SPEC",
        default=DEFAULT_SPECS,
        help="NAME or NAME:key=value,... (default: all, at several settings)",
    )
    parser.add_argument("--repeat", type=int, default=5, help="counted runs each (default: 5)")
    parser.add_argument("--warm-up", type=int, default=1, help="runs before that (default: 1)")
    parser.add_argument("--threads", type=int, help="CPUs a run may use (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of every random draw (default: 0)")
    parser.add_argument(
        "--timeout", type=float, default=1800, metavar="S", help="wall time a run (default: 1800)"
    )
    parser.add_argument(
        "--verify", action="store_true", help="check gaps by float64 brute force in the warm-up"
    )
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder of the real sets")
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK, help="folder of converted files")
    parser.add_argument(
        "--output", type=Path, default=DEFAULT_OUTPUT, help="folder of records and report"
    )
    parser.add_argument("--no-report", action="store_true", help="write records only")
    return parser


def limit_cpus(threads: int | None) -> int:
    """Hold this process, and so its children, to some CPUs; returns their number.

    The one way that every solver obeys, whichever threading library it brings.
    """
    allowed = sorted(os.sched_getaffinity(0))[:threads]
    os.sched_setaffinity(0, allowed)
    return len(allowed)


def available(solvers: Sequence[Chosen]) -> list[Chosen]:
    """Solvers whose packages are installed; says which are left out."""
    chosen = []
    for spec, solver, parameters in solvers:
        missing = missing_packages(solver)
        if missing:
            print(
                f"{spec} is left out: {', '.join(missing)} not installed "
                "(pip install 'ooc-fw[bench]')",
                file=sys.stderr,
            )
        else:
            chosen.append((spec, solver, parameters))
    return chosen


def _run_set(
    prepared: Prepared,
    solvers: Sequence[Chosen],
    args: argparse.Namespace,
    common: Record,
    records: Path,
) -> None:
    """All runs on one set, solvers alternating; one that failed is not tried again."""
    failed = set()
    for turn in range(-args.warm_up, args.repeat):
        for spec, solver, parameters in solvers:
            if spec in failed:
                continue
            first = turn == -args.warm_up
            how = {"verify": args.verify and first, "timeout_s": args.timeout}
            counted = common | {"turn": turn, "warm_up": turn < 0}
            record = measure(prepared, (spec, solver, parameters), counted, **how)
            if record["status"] in FAILURES:
                failed.add(spec)
            append(record, records)


def measure(prepared: Prepared, chosen: Chosen, common: Record, **how: Any) -> Record:
    """Run a solver on a set once; the record of it is `common`, with seed and threads, and more.

    `how` are further fields of a `Problem`.
    """
    spec, solver, parameters = chosen
    problem = Problem(
        train=str(prepared.train),
        test=str(prepared.test),
        C=prepared.C,
        gamma=prepared.gamma,
        seed=common["seed"],
        threads=common["threads"],
        **how,
    )
    return common | {
        "dataset": prepared.name,
        "n_rows": prepared.n_rows,
        "n_features": prepared.n_features,
        "C": prepared.C,
        "gamma": prepared.gamma,
        "solver": solver.name,
        "spec": spec,
        "parameters": json.dumps(parameters, sort_keys=True),
        **run_once(solver, problem, parameters),
    }


def append(record: Record, records: Path) -> None:
    """Add a record to the file of them, and say on standard output what it is."""
    with records.open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(line(record), flush=True)


def run_once(solver: Solver, problem: Problem, parameters: Parameters) -> Record:
    """Figures of one run; giving up or failing is a status."""
    started = time.perf_counter()
    try:
        figures = solver.run(problem, parameters)
    except TimeoutError:
        return {"status": "timeout", "seconds": time.perf_counter() - started}
    except ChildError as error:
        return {"status": "failed", "error": str(error)}
    return {**figures, "test_error": 1 - figures["accuracy"]}


def line(record: Record) -> str:
    """One line for people."""
    parts = [f"{record['dataset']} {record['spec']}", "warm-up" if record.get("warm_up") else ""]
    if "accuracy" in record:
        parts += [
            f"{record['seconds']:.2f} s",
            f"{record['peak_rss_bytes'] / 1e6:.0f} MB",
            f"{100 * record['accuracy']:.2f} %",
        ]
        if record.get("certified_gap") is not None:
            parts.append(f"certified gap {record['certified_gap']:.2e}")
    else:
        parts += [record["status"], record.get("error", "")]
    return "  ".join(filter(None, parts))


if __name__ == "__main__":
    sys.exit(main())
