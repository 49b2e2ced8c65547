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
from bench.datasets import DATASETS, DEFAULT_DATA, Prepared, prepare, thinned
from bench.environment import environment
from bench.process import OOC_FW, ChildError, run_measured
from bench.published import RESULTS, Record, markdown, put, read_lines
from bench.solvers import Parameters, Problem, Solver, parse_spec
from bench.solvers.base import missing_packages

DEFAULT_WORK = Path(tempfile.gettempdir()) / "ooc-fw-bench"
FAILURES = ("timeout", "failed")  # statuses of runs without figures


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for, then print the tables of it."""
    args = _parser().parse_args(argv)
    try:
        groups = chosen(args)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    output = args.work / f"{args.config}.jsonl"
    args.work.mkdir(parents=True, exist_ok=True)
    common = {
        "session": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": args.config,
        **environment(),
        "threads": limit_cpus(args.threads),
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
    add("--sets", nargs="+", metavar="SET", help=f"only these, of {', '.join(DATASETS)}")
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
    """The runs of a configuration, or those of named sets; ValueError for a name unknown."""
    groups = list(CONFIGS[args.config])
    unknown = set(args.sets or ()) - set(DATASETS)
    if unknown:
        raise ValueError(f"no set is called {min(unknown)!r}; there are {', '.join(DATASETS)}")
    if args.publish and (args.solvers or args.thin):
        raise ValueError("--publish takes the solvers and sets of a configuration as they are")
    for spec in args.solvers or ():
        parse_spec(spec)
    known = {name for runs in groups for name in runs.sets}
    if args.sets and not args.solvers and (other := set(args.sets) - known):
        raise ValueError(f"{args.config} has no set {min(other)!r}; name solvers with --solvers")
    if args.solvers:
        return [Runs(tuple(args.sets or known), tuple(args.solvers))]
    if args.sets:
        own = (tuple(name for name in runs.sets if name in args.sets) for runs in groups)
        groups = [replace(runs, sets=sets) for runs, sets in zip(groups, own, strict=True)]
    return groups


def limit_cpus(threads: int | None) -> int:
    """Hold this process, and so its children, to some CPUs; returns their number.

    The one way that every solver obeys, whichever threading library it brings.
    """
    allowed = sorted(os.sched_getaffinity(0))[:threads]
    os.sched_setaffinity(0, allowed)
    return len(allowed)


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
            if missing := missing_packages(solver):
                if not turn:
                    print(f"{spec} is left out: no {', '.join(missing)}", file=sys.stderr)
                continue
            if made[spec] and made[spec][-1]["status"] in FAILURES:
                continue
            problem = Problem(
                train=str(prepared.train),
                test=str(prepared.test),
                C=prepared.C,
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
                "command": command,
                **facts(prepared),
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


def facts(prepared: Prepared) -> Record:
    """What a record says of the set."""
    names = "title C gamma n_rows n_features n_classes rows_bytes".split()
    return {"dataset": prepared.name, **{name: getattr(prepared, name) for name in names}}


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
