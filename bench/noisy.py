"""Noisy data: landmark models beside their peers, ``python -m bench.noisy``.

On noisy data the exact L2-SVM keeps half of all rows, and the question is what a model of N vectors
can do. Each method is run on each set with several seeds, each run in a process of its own; it
appends one JSON record to a file, and a run whose record is there is not repeated, so that the
command can be ended and given again. At the end it writes one Markdown table and two figures:
accuracy against time, and against vectors. Imports nothing heavy; see `bench.process`.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.datasets import DATASETS, DEFAULT_DATA, Dataset, prepare, thinned
from bench.environment import environment
from bench.process import ChildError
from bench.report import scale_logarithmic, table, versions
from bench.run import (
    DEFAULT_OUTPUT,
    DEFAULT_WORK,
    FAILURES,
    RECORDS,
    Chosen,
    Record,
    append,
    available,
    limit_cpus,
    measure,
)
from bench.solvers import parse_spec

MEMORY_SHARE = 0.9
"""Share of the machine's memory that a run may take; what would take more fails, and is recorded
as such, before the machine runs out of it."""


class Case(NamedTuple):
    """A set, the numbers of vectors to try on it, and how it is thinned for a quick look."""

    dataset: str
    sizes: tuple[int, ...]
    every: int  # one row in so many is left


CASES = (
    Case("covtype", (1_000, 2_000, 5_000, 10_000), 32),
    Case("a9a", (1_000, 2_000, 5_000), 8),
    Case("w7a", (1_000, 2_000, 5_000), 8),
)
"""Class 2 of covtype against the rest; incomes; web pages, 3 % of them positive."""

QUICK_SIZES = (100, 400)

OURS = "ooc-fw:landmarks={n}"
SIZED = (
    OURS,
    "subsample:support={n}",
    "nystroem:components={n}",
    "nystroem:components={n},linear=sgd",
)
UNSIZED = ("sgd", "xgboost:trees=100", "xgboost:trees=500")

METHODS = {
    "ooc-fw": "ooc-fw, landmarks",
    "subsample": "LIBSVM on random rows",
    "nystroem": "Nystroem + LinearSVC",
    "nystroem sgd": "Nystroem + SGD",
    "sgd": "linear SGD",
    "xgboost": "XGBoost",
}
"""What methods are called in the table and the figures, in the order of their colours."""

NOTES = """\
Medians over the seeds, least to largest in brackets. Seconds of ooc-fw are a whole process from
start to exit, imports, reading the file and writing the model included; those of the others are the
fit alone, from rows in RAM, warmed up. Peak memory is that of a process of its own, up to the end
of the fit. The gap is the largest of the seeds: (primal - dual) / primal over all rows, within the
span of the landmarks; the other methods have none. LIBSVM solves the L1-SVM (hinge loss) on as many
random rows as give it about as many support vectors; finding their number is not in its time."""


# -- the runs ------------------------------------------------------------------------------------


def specs(sizes: Iterable[int]) -> list[str]:
    """Specs of all runs on one set, those of few vectors first."""
    return [*UNSIZED, *(spec.format(n=n) for n in sizes for spec in SIZED)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, then write the table and the figures."""
    args = _parser().parse_args(argv)
    args.output = args.output or DEFAULT_OUTPUT / ("noisy-quick" if args.quick else "noisy")
    args.output.mkdir(parents=True, exist_ok=True)
    records = args.output / RECORDS
    if not args.report_only:
        unknown = set(args.sets) - {case.dataset for case in CASES}
        if unknown:
            print(f"no noisy set is called {min(unknown)!r}", file=sys.stderr)
            return 2
        try:
            _run(args, records)
        except ChildError as error:
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("ended; the same command makes the runs that are missing", file=sys.stderr)
    found = last_records(records)
    if not found:
        print(f"{records} has no records", file=sys.stderr)
        return 1
    report = args.output / "noisy.md"
    report.write_text(markdown(found))
    print(f"wrote {report}")
    try:
        for path in draw(found, args.output):
            print(f"wrote {path}")
    except ImportError:
        print("matplotlib is not installed: no figures", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.noisy",
        description="Landmark models on noisy data, beside their peers. Runs whose records are "
        "there are not repeated: delete lines of the file of records to have them run again.",
    )
    names = [case.dataset for case in CASES]
    parser.add_argument(
        "--sets", nargs="+", default=names, metavar="SET", help=f"of {', '.join(names)}"
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each method (default: 3)")
    parser.add_argument(
        "--quick", action="store_true", help="thinned sets, few vectors and one seed, for a look"
    )
    parser.add_argument("--retry", action="store_true", help="run again what failed or took long")
    parser.add_argument("--report-only", action="store_true", help="run nothing")
    parser.add_argument("--threads", type=int, help="CPUs a run may use (default: all)")
    parser.add_argument(
        "--timeout", type=float, default=1800, metavar="S", help="wall time a run (default: 1800)"
    )
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder of the real sets")
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK, help="folder of converted files")
    parser.add_argument("--output", type=Path, help="folder of records, table and figures")
    return parser


def _run(args: argparse.Namespace, records: Path) -> None:
    """All runs that have no record yet; the seeds take turns, so that a first look comes early."""
    common = {
        "session": datetime.now(UTC).isoformat(timespec="seconds"),
        **environment(),
        "threads": limit_cpus(args.threads),
    }
    _limit_memory(int(MEMORY_SHARE * common["memory_bytes"]))
    done = {
        _key(record)
        for record in last_records(records)
        if not (args.retry and record["status"] in FAILURES)
    }
    cases = [case for case in CASES if case.dataset in args.sets]
    sizes = {n for case in cases for n in (QUICK_SIZES if args.quick else case.sizes)}
    usable = {one[0]: one for one in available([(s, *parse_spec(s)) for s in specs(sorted(sizes))])}
    for seed in range(1 if args.quick else args.seeds):
        for case in cases:
            dataset, wanted = DATASETS[case.dataset], specs(case.sizes)
            if args.quick:
                dataset, wanted = thinned(dataset, case.every), specs(QUICK_SIZES)
            left = [
                usable[spec]
                for spec in wanted
                if spec in usable and (dataset.name, spec, seed) not in done
            ]
            if left:
                _run_case(dataset, left, common | {"seed": seed}, args, records)


def _run_case(
    dataset: Dataset,
    left: Sequence[Chosen],
    common: Record,
    args: argparse.Namespace,
    records: Path,
) -> None:
    """Runs of one seed on one set; before the first of ours one that compiles and is dropped."""
    prepared = prepare(dataset, args.data, args.work)
    warm = common["seed"] > 0
    for one in left:
        if one[1].name == "ooc-fw" and not warm:
            measure(prepared, one, common, timeout_s=args.timeout)
            warm = True
        append(measure(prepared, one, common, timeout_s=args.timeout), records)


def _limit_memory(most: int) -> None:
    """Limit the private memory of this process, and so of each of its children."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _key(record: Record) -> tuple[str, str, int]:
    return record["dataset"], record["spec"], record["seed"]


def last_records(path: Path) -> list[Record]:
    """The last record of each run in a file, in the order of the file; none without a file."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    return list({_key(record): record for record in map(json.loads, lines)}.values())


# -- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """The runs of one method, with one number of vectors, on one set."""

    dataset: str
    spec: str
    method: str  # in `METHODS`
    records: list[Record]  # those that came to their end
    status: str  # of the last run

    def values(self, key: str) -> list[float]:
        """What is known of one figure."""
        return [record[key] for record in self.records if record.get(key) is not None]

    def median(self, key: str) -> float | None:
        """Median of one figure; None if no run knows it."""
        values = self.values(key)
        return statistics.median(values) if values else None

    @property
    def vectors(self) -> float | None:
        """Rows that the model keeps: support vectors, landmarks, or components; None of trees."""
        components = json.loads(self.records[-1]["parameters"]).get("components")
        return components or self.median("n_support")


def cells(records: Iterable[Record]) -> list[Cell]:
    """The runs, method by method, set by set, in the order of `METHODS` and then of vectors."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["dataset"], record["spec"]), []).append(record)
    sets = list(dict.fromkeys(dataset for dataset, _ in groups))
    methods = list(METHODS)
    found = []
    for (dataset, spec), group in groups.items():
        linear = json.loads(group[0]["parameters"]).get("linear")
        method = f"{group[0]['solver']} sgd" if linear == "sgd" else group[0]["solver"]
        ended = [record for record in group if "accuracy" in record]
        found.append(Cell(dataset, spec, method, ended, group[-1]["status"]))
    return sorted(
        found, key=lambda own: (sets.index(own.dataset), methods.index(own.method), _size(own.spec))
    )


def _size(spec: str) -> int:
    """The number in a spec, such as that of vectors or trees."""
    return int("".join(filter(str.isdigit, spec)) or 0)


def markdown(records: Sequence[Record]) -> str:
    """One table of all sets and methods, with what is needed to read it."""
    last = records[-1]
    changes = " with uncommitted changes" if last["uncommitted_changes"] else ""
    problems = {
        record["dataset"]: f"{record['dataset']}: {record['n_rows']} rows, {record['n_features']} "
        f"features, C {record['C']:g}, gamma {record['gamma']:.6g}"
        for record in records
    }
    seeds = len({record["seed"] for record in records})
    heads = ("set", "method", "vectors", "test accuracy %", "balanced %", "ROC AUC", "seconds")
    rows = [_row(own) for own in cells(records)]
    return "\n\n".join(
        [
            "# Noisy data",
            f"{last['cpu']}, {last['threads']} CPUs used, {last['memory_bytes'] / 2**30:.0f} GiB "
            f"of memory; commit {(last['commit'] or 'none')[:12]}{changes}; {versions(last)}; "
            f"{seeds} seed{'s' * (seeds > 1)}.",
            ". ".join(problems.values()) + ".",
            NOTES,
            table([*heads, "peak MB", "gap in the span"], rows) + "\n",
        ]
    )


def _row(own: Cell) -> list[str]:
    name = METHODS[own.method]
    if own.method == "xgboost":
        name += f", {_size(own.spec)} trees"
    if not own.records:
        size = _size(own.spec) if own.method not in ("sgd", "xgboost") else ""
        return [own.dataset, name, str(size), own.status, *[""] * 5]
    vectors, gaps = own.vectors, own.values("certified_gap")
    return [
        own.dataset,
        name,
        "" if vectors is None else f"{vectors:.0f}",
        _spread(own, "accuracy", ".2f", 100),
        _spread(own, "balanced_accuracy", ".2f", 100),
        _spread(own, "roc_auc", ".4f"),
        _spread(own, "seconds", ".1f"),
        _spread(own, "peak_rss_bytes", ".0f", 1e-6),
        f"{max(gaps):.1e}" if gaps else "",
    ]


def _spread(own: Cell, key: str, form: str, scale: float = 1.0) -> str:
    """Median, and least to largest in brackets if they differ as shown."""
    values = sorted(scale * value for value in own.values(key))
    if not values:
        return ""
    shown = statistics.median(values), values[0], values[-1]
    middle, least, most = (f"{value:{form}}" for value in shown)
    return middle if least == most else f"{middle} ({least} to {most})"


# -- the figures ---------------------------------------------------------------------------------


def draw(records: Sequence[Record], folder: Path) -> list[Path]:
    """Write test accuracy against time and against vectors, a panel for each set."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    known = [own for own in cells(records) if own.records]
    datasets = list(dict.fromkeys(own.dataset for own in known))
    axes_of: dict[str, tuple[str, Callable[[Cell], float | None]]] = {
        "time": ("seconds", lambda own: own.median("seconds")),
        "vectors": ("vectors of the model", lambda own: own.vectors),
    }
    paths = []
    for name, (label, place) in axes_of.items():
        figure = Figure(figsize=(max(6, 4.6 * len(datasets)), 4.6), layout="constrained")
        FigureCanvasAgg(figure)
        handles: dict[str, Any] = {}
        panels = figure.subplots(1, len(datasets), squeeze=False)[0]
        for ax, dataset in zip(panels, datasets, strict=True):
            own = [cell for cell in known if cell.dataset == dataset]
            _draw_panel(ax, own, place)
            ax.set(title=dataset, xlabel=label, ylabel="test accuracy (%)")
            handles |= dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
        names = [name for name in METHODS.values() if name in handles]
        legend = [handles[name] for name in names], names
        figure.legend(*legend, loc="outside lower center", ncols=2 * len(datasets))
        paths.append(folder / f"accuracy-{name}.png")
        figure.savefig(paths[-1], dpi=120)
    return paths


def _draw_panel(ax: Any, known: Sequence[Cell], place: Callable[[Cell], float | None]) -> None:
    """A line for each method, with the spread of its accuracies; level lines for those nowhere."""
    for color, (method, name) in enumerate(METHODS.items()):
        chosen = [own for own in known if own.method == method]
        placed = [(x, own) for own in chosen if (x := place(own)) is not None]
        placed.sort(key=lambda pair: pair[0])
        look = {"color": f"C{color}", "label": name}
        if placed:
            middle, below, above = zip(*(_accuracies(own) for _, own in placed), strict=True)
            at = [x for x, _ in placed]
            ax.errorbar(at, middle, yerr=[below, above], marker="o", ms=4, capsize=2, **look)
        elif chosen:
            best = max(_accuracies(own)[0] for own in chosen)
            ax.axhline(best, linestyle="--", **look)
    places = [x for own in known if (x := place(own)) is not None]
    if places:
        scale_logarithmic(ax, places)
    ax.grid(alpha=0.3)


def _accuracies(own: Cell) -> tuple[float, float, float]:
    """Median in per cent, and how far the least and the largest are from it."""
    values = [100 * value for value in own.values("accuracy")]
    middle = statistics.median(values)
    return middle, middle - min(values), max(values) - middle


if __name__ == "__main__":
    sys.exit(main())
