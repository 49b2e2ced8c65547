"""Run solvers on data sets and record what they cost: ``python -m bench.run``.

A configuration (`bench.configs`) names sets, solvers and the table that their records are for. The
solvers of a set run in turn, again and again, so that a machine that slows down slows all alike.
Each run is a process of its own and appends one flat JSON object to a file. Imports nothing heavy;
see `bench.process`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from bench.configs import CONFIGS, Runs
from bench.datasets import DATASETS, DEFAULT_DATA, prepare, thinned
from bench.environment import environment
from bench.process import OOC_FW, ChildError, run_measured
from bench.published import RESULTS, Record, markdown, put, read_lines
from bench.solvers import Parameters, Problem, Solver, missing, parse_spec

DEFAULT_WORK = Path(tempfile.gettempdir()) / "ooc-fw-bench"
FACTS = ("gamma", "n_rows", "n_features", "n_classes", "rows_bytes")  # of a set
FAILURES = ("timeout", "failed")  # statuses of runs without figures


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for, then print the tables of it."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        groups = chosen(args)
    except ValueError as error:
        parser.error(str(error))
    # The one way to limit threads that every solver obeys, whichever threading library it brings.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    output = args.work / f"{args.config}.jsonl"
    args.work.mkdir(parents=True, exist_ok=True)
    common = {
        "session": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": args.config,
        **environment(),
        "threads": len(os.sched_getaffinity(0)),
        "seed": args.seed,
    }
    if not args.thin:
        run_measured([*OOC_FW, "warm-up", "--quiet"])  # compiled code
    medians, status = [], 0
    for runs in groups:
        for name in runs.sets:
            try:
                found = [*measure_set(runs, name, common, args, output)]
            except ChildError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
                status = 1
                continue
            medians += found
            if args.publish:
                publish(args.config, found)
    for table in dict.fromkeys(one["table"] for one in medians):
        print(f"\n{markdown(table, medians)}")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.run", description="Run solvers on data sets and record the costs."
    )
    add = parser.add_argument
    add("--config", choices=CONFIGS, default="readme", help="sets, solvers and tables (readme)")
    add("--sets", nargs="+", choices=DATASETS, metavar="SET", help="only these")
    add("--solvers", nargs="+", metavar="SPEC", help="others: NAME or NAME:key=value,...")
    add("--repeat", type=int, help="runs each")
    add("--thin", type=int, metavar="N", help="only one in N rows of each set, for a look")
    add("--threads", type=int, help="CPUs a run may use (default: all)")
    add("--seed", type=int, default=0, help="of every random draw (default: 0)")
    add("--timeout", type=float, metavar="S", help="wall time of a run")
    add("--verify", action="store_true", help="check gaps by brute force in the first run")
    add("--publish", action="store_true", help="put the records into bench/results")
    add("--data", type=Path, default=DEFAULT_DATA, help="folder of the real sets")
    add("--work", type=Path, default=DEFAULT_WORK, help="folder of converted files and records")
    return parser


def chosen(args: argparse.Namespace) -> list[Runs]:
    """The runs of a configuration, or those of named sets; ValueError for what makes no sense."""
    groups = CONFIGS[args.config]
    if args.publish and (args.solvers or args.thin):
        raise ValueError("--publish takes the solvers and sets of a configuration as they are")
    known = {name for runs in groups for name in runs.sets}
    if args.solvers:
        for spec in args.solvers:
            parse_spec(spec)
        return [Runs(tuple(args.sets or known), tuple(args.solvers))]
    wanted = set(args.sets or known)
    if other := wanted - known:
        raise ValueError(f"{args.config} has no set {min(other)}; name solvers with --solvers")
    return [replace(runs, sets=[one for one in runs.sets if one in wanted]) for runs in groups]


def measure_set(
    runs: Runs, name: str, common: Record, args: argparse.Namespace, output: Path
) -> Iterator[Record]:
    """Run the solvers of a set in turn; of each the record of median time, in which all are told.

    A solver that failed is not tried again.
    """
    dataset = thinned(DATASETS[name], args.thin) if args.thin else DATASETS[name]
    prepared = prepare(dataset, args.data, args.work)
    made: dict[str, list[Record]] = {spec: [] for spec in runs.specs}
    command = f"python -m bench.run --config {args.config} --sets {name}"
    for turn in range(args.repeat or runs.repeat):
        for spec in runs.specs:
            solver, parameters = parse_spec(spec)
            if lacking := missing(solver):
                if not turn:
                    print(f"{spec} is left out: no {', '.join(lacking)}", file=sys.stderr)
                continue
            if made[spec] and made[spec][-1]["status"] in FAILURES:
                continue
            problem = Problem(
                train=str(prepared.train),
                test=str(prepared.test),
                C=dataset.C,
                gamma=prepared.gamma,
                seed=args.seed,
                threads=common["threads"],
                verify=args.verify and not turn,
                target=runs.targets.get(name),
                timeout_s=args.timeout or runs.timeout_s,
            )
            record = {
                **common,
                "table": runs.table,
                "command": f"{command} --solvers {spec}" if args.solvers else command,
                "dataset": dataset.name,
                "title": dataset.title or dataset.name,
                **{name: getattr(prepared, name) for name in FACTS},
                "C": dataset.C,
                "target": problem.target,
                "solver": solver.name,
                "spec": spec,
                "parameters": json.dumps(parameters, sort_keys=True),
                "memory_limit": parameters.get("memory"),
                "tol": parameters.get("tol"),
                "turn": turn,
                **run_once(solver, problem, parameters),
            }
            made[spec].append(record)
            with output.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(line(record), flush=True)
    for records in filter(None, made.values()):
        yield median(records)


def run_once(solver: Solver, problem: Problem, parameters: Parameters) -> Record:
    """Figures of one run; giving up or failing is a status."""
    started = time.perf_counter()
    try:
        return solver.run(problem, parameters)
    except TimeoutError:
        return {"status": "timeout", "seconds": time.perf_counter() - started}
    except ChildError as error:
        return {"status": "failed", "error": str(error)}


def median(records: Sequence[Record]) -> Record:
    """The record of the median time, with what the first one knows alone and how many there are."""
    done = [one for one in records if one["status"] not in FAILURES] or list(records)
    ordered = sorted(done, key=lambda one: one.get("seconds", 0))
    middle = ordered[(len(ordered) - 1) // 2]
    spread = {
        "seconds_least": ordered[0].get("seconds"),
        "seconds_most": ordered[-1].get("seconds"),
    }
    return {**records[0], **middle, "median_of": len(done), **spread}


def publish(config: str, records: Sequence[Record]) -> None:
    """Put records into the file of a configuration, in place of those of the same runs."""
    path = RESULTS / f"{config}.jsonl"
    kept = {_key(one): one for one in [*read_lines(path), *records]}
    order = [
        (runs.table, name, spec)
        for runs in CONFIGS[config]
        for name in runs.sets
        for spec in runs.specs
    ]
    put(path, (kept[key] for key in order if key in kept))


def _key(record: Record) -> tuple[str, str, str]:
    return record["table"], record["dataset"], record["spec"]


def line(record: Record) -> str:
    """One line for people."""
    parts = [f"{record['dataset']} {record['spec']}"]
    if record["status"] in FAILURES:
        parts += [record["status"], record.get("error", "")]
    else:
        score = "accuracy" if "accuracy" in record else "score"
        parts += [f"{record['seconds']:.2f} s", f"{score} {record[score]:.4f}"]
        parts += [f"{record['peak_rss_bytes'] / 1e6:.0f} MB"]
        if record.get("certified_gap") is not None:
            parts.append(f"certified gap {record['certified_gap']:.2e}")
    return "  ".join(filter(None, parts))


if __name__ == "__main__":
    sys.exit(main())
