"""Cross data sets, solvers and tasks: ``python -m bench.run``.

A configuration names a task, its sets and its solvers; arguments replace parts of it. All solvers
run in turn, again and again, so that a machine that slows down slows all alike. Each run is a
process of its own and appends one flat JSON object to a file. Imports nothing heavy; see
`bench.process`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.datasets import DATASETS, DEFAULT_DATA, Prepared, default_sets, prepare, thinned
from bench.environment import environment
from bench.process import OOC_FW, ChildError, run_measured
from bench.solvers import DEFAULT_SPECS, Parameters, Problem, Solver, parse_spec
from bench.solvers.base import missing_packages

DEFAULT_WORK = Path(tempfile.gettempdir()) / "ooc-fw-bench"
FAILURES = ("timeout", "failed")  # statuses of runs without figures

Chosen = tuple[str, Solver, Parameters]
Record = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """What is crossed; without sets, those of `default_sets`."""

    specs: tuple[str, ...]
    sets: Mapping[str, int | None] = field(default_factory=dict)  # with the target of the task
    task: str = "classification"
    repeat: int = 1
    warm_up: int = 0


CONFIGS = {
    "standard": Config(DEFAULT_SPECS, repeat=5, warm_up=1),
    # Tables of mixed columns, on which trees are at home: what does somebody get who tunes nothing?
    "noisy": Config(
        ("tune:metric=auc,max-time=2m", "tune:metric=auc,max-time=10m", "hist-boosting", "xgboost")
        + ("sgd", "nystroem:components=1000,alpha=1e-6"),
        dict.fromkeys(("covtype", "a9a", "ijcnn1", "prices", "calls", "levels")),
    ),
    # With the class that is ordinary.
    "novelty": Config(
        ("one-class", "sklearn-one-class"),
        {"shuttle": 1, "pendigits": 0, "usps": 1, "mnist8": 1, "kdd99": -1, "kdd-full": -1},
        "novelty",
    ),
    # With the column that is the target.
    "regression": Config(
        ("svr", "sklearn-svr", "svr:epsilon=0", "kernel-ridge"),
        {"covtype-40k": 0, "letter": 0, "usps": 120, "pendigits": 15, "skin": 0},
        "regression",
    ),
    "kdd-full": Config(("ooc-fw:memory=1GiB,tol=1e-2",), {"kdd-full": None}),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for."""
    args = _parser().parse_args(argv)
    config = CONFIGS[args.config]
    try:
        solvers = [(spec, *parse_spec(spec)) for spec in args.solvers or config.specs]
        names = args.sets or tuple(config.sets) or default_sets(args.data)
        unknown = set(names) - set(DATASETS)
        if unknown:
            raise ValueError(f"no set is called {min(unknown)!r}; there are {', '.join(DATASETS)}")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    args.output = args.output or args.work / f"{args.config}.jsonl"
    args.output.parent.mkdir(parents=True, exist_ok=True)
    common = begin(args.config, config.task, args.threads)
    done = set()
    if args.resume and (earlier := read_lines(args.output)):
        common["session"] = earlier[-1]["session"]
        done = {_key(one) for one in earlier if one["session"] == common["session"]}
    try:
        _cross(config, names, available(solvers), common, done, args)
    except ChildError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ended; --resume makes the runs that are missing", file=sys.stderr)
        return 130
    run_measured([sys.executable, "-m", "bench.report", args.output.resolve()])
    print(f"wrote {args.output.with_suffix('.md')}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.run", description="Run solvers on data sets and record the costs."
    )
    add = parser.add_argument
    add("--config", choices=CONFIGS, default="standard", help="task, sets and solvers")
    add("--sets", nargs="+", metavar="SET", help=f"of {', '.join(DATASETS)}")
    add("--solvers", nargs="+", metavar="SPEC", help="NAME or NAME:key=value,...")
    add("--repeat", type=int, help="counted runs each")
    add("--warm-up", type=int, help="runs before that")
    add("--thin", type=int, metavar="N", help="only one in N rows of each set, for a look")
    add("--resume", action="store_true", help="only what the last session did not come to")
    add("--threads", type=int, help="CPUs a run may use (default: all)")
    add("--seed", type=int, default=0, help="of every random draw (default: 0)")
    add("--timeout", type=float, default=1800, metavar="S", help="wall time a run (1800)")
    add("--verify", action="store_true", help="check gaps by brute force in the first run")
    add("--data", type=Path, default=DEFAULT_DATA, help="folder of the real sets")
    add("--work", type=Path, default=DEFAULT_WORK, help="folder of converted files")
    add("--output", type=Path, metavar="FILE", help="records (default: CONFIG.jsonl in --work)")
    return parser


def begin(config: str, task: str, threads: int | None) -> Record:
    """What all records of a session have in common; holds this process to so many CPUs."""
    return {
        "session": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": config,
        "task": task,
        **environment(),
        "threads": limit_cpus(threads),
    }


def limit_cpus(threads: int | None) -> int:
    """Hold this process, and so its children, to some CPUs; returns their number.

    The one way that every solver obeys, whichever threading library it brings.
    """
    allowed = sorted(os.sched_getaffinity(0))[:threads]
    os.sched_setaffinity(0, allowed)
    return len(allowed)


def available(solvers: Sequence[Chosen]) -> list[Chosen]:
    """Solvers whose packages are installed; says which are left out."""
    missing = {spec: ", ".join(missing_packages(solver)) for spec, solver, _ in solvers}
    for spec, names in missing.items():
        if names:
            why = f"{names} not installed (pip install 'ooc-fw[bench]')"
            print(f"{spec} is left out: {why}", file=sys.stderr)
    return [one for one in solvers if not missing[one[0]]]


def _cross(
    config: Config,
    names: Sequence[str],
    solvers: Sequence[Chosen],
    common: Record,
    done: set[tuple[Any, ...]],
    args: argparse.Namespace,
) -> None:
    """All runs, set by set, solvers alternating; one that failed is not tried again."""
    warm_up = config.warm_up if args.warm_up is None else args.warm_up
    repeat = config.repeat if args.repeat is None else args.repeat
    if not warm_up:
        run_measured([*OOC_FW, "warm-up", "--quiet"])  # compiled code, at least
    for name in names:
        dataset = thinned(DATASETS[name], args.thin) if args.thin else DATASETS[name]
        prepared = prepare(dataset, args.data, args.work)
        failed = set()
        for turn in range(-warm_up, repeat):
            for spec, solver, parameters in solvers:
                mine = {"turn": turn, "warm_up": turn < 0, "seed": args.seed}
                key = _key({"dataset": prepared.name, "spec": spec, **mine})
                if spec in failed or key in done:
                    continue
                record = measure(
                    prepared,
                    (spec, solver, parameters),
                    common | mine,
                    verify=args.verify and turn == -warm_up,
                    timeout_s=args.timeout,
                    target=config.sets.get(name),
                )
                if record["status"] in FAILURES:
                    failed.add(spec)
                with args.output.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                print(line(record), flush=True)


def _key(record: Record) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("dataset", "spec", "seed", "turn"))


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


def run_once(solver: Solver, problem: Problem, parameters: Parameters) -> Record:
    """Figures of one run; giving up or failing is a status."""
    started = time.perf_counter()
    try:
        return solver.run(problem, parameters)
    except TimeoutError:
        return {"status": "timeout", "seconds": time.perf_counter() - started}
    except ChildError as error:
        return {"status": "failed", "error": str(error)}


def read_lines(path: Path) -> list[Record]:
    """Records of a file, which may not be there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def line(record: Record) -> str:
    """One line for people."""
    parts = [f"{record['dataset']} {record['spec']}", "warm-up" if record["warm_up"] else ""]
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
