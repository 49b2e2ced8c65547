"""Records to a Markdown table and a figure: ``python -m bench.report RECORDS.jsonl``."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Record = dict[str, Any]

NOTES = """\
Seconds are medians of wall times, least to largest in brackets. Those of ooc-fw are a whole
process from start to exit, imports and reading the file included; those of peers are the fit alone,
from rows in RAM, warmed up. CPU seconds cover the same. Peak memory is that of a process of its
own, up to the end of the fit; peers hold all rows in it.

intelex-svc, sklearn-svc and subsample solve the L1-SVM (hinge loss), ooc-fw the L2-SVM (squared
hinge), with the same kernel and the same C: near relatives, not one problem. Gaps are relative to
rho, the margin. The certified gap of the peers is left empty, since the L1-SVM has none on this
scale; what stands beside ours is the pair gap, the two-sided violation that `tol` of an SVC bounds.
Theirs, and the brute-force gap, are computed in float64 by code of their own (`--verify`; empty
without it). Kernel values a second are over the whole run and all threads."""


@dataclass(frozen=True)
class Summary:
    """Runs of one solver spec on one set."""

    dataset: str
    solver: str
    spec: str
    status: str  # of the last run
    seconds: list[float]  # of the counted runs, empty when none came to its end
    medians: dict[str, float]  # of every other number that was recorded

    @property
    def median_seconds(self) -> float:
        """Median wall time."""
        return statistics.median(self.seconds)


def read_records(path: Path, session: str | None = None) -> list[Record]:
    """Records of one session of `bench.run`: the last one in the file when None."""
    records = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    if not records:
        raise ValueError(f"{path} holds no records; write some with python -m bench.run")
    session = session or records[-1]["session"]
    return [record for record in records if record["session"] == session]


def summarise(records: Iterable[Record]) -> list[Summary]:
    """One summary for each set and spec, in the order of their first runs."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["dataset"], record["spec"]), []).append(record)
    return [_summary(group) for group in groups.values()]


def _summary(group: list[Record]) -> Summary:
    last = group[-1]
    done = [record for record in group if "seconds" in record and record["status"] != "timeout"]
    # The brute force runs in the warm-up only, so numbers of warm-ups stand in for missing ones.
    counted = [record for record in done if not record["warm_up"]]
    medians = {}
    for key in {key for record in done for key in record} - {"seconds"}:
        values = _numbers(counted, key) or _numbers(done, key)
        if values:
            medians[key] = statistics.median(values)
    return Summary(
        last["dataset"],
        last["solver"],
        last["spec"],
        last["status"],
        [record["seconds"] for record in counted],
        medians,
    )


def _numbers(records: list[Record], key: str) -> list[float]:
    values = [record.get(key) for record in records]
    return [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]


# -- Markdown ------------------------------------------------------------------------------------


def markdown(records: Sequence[Record], baseline: str) -> str:
    """Whole report; times are compared with the fastest spec of `baseline`."""
    first = records[0]
    commit = (first["commit"] or "no commit")[:12]
    changes = " with uncommitted changes" if first["uncommitted_changes"] else ""
    parts = [
        "# Benchmark",
        f"{first['cpu']}, {first['threads']} CPUs used, {first['memory_bytes'] / 2**30:.0f} GiB of "
        f"memory; {first['session']}; commit {commit}{changes}; {versions(first)}.",
        NOTES,
    ]
    summaries = summarise(records)
    for dataset in dict.fromkeys(summary.dataset for summary in summaries):
        chosen = [summary for summary in summaries if summary.dataset == dataset]
        facts = next(record for record in records if record["dataset"] == dataset)
        parts += [
            f"## {dataset}",
            f"{facts['n_rows']} rows, {facts['n_features']} features, C {facts['C']:g}, "
            f"gamma {facts['gamma']:.6g}",
            _main_table(chosen, baseline),
        ]
    return "\n\n".join(parts) + "\n"


def versions(record: Record) -> str:
    found = {
        key.removeprefix("version_"): value
        for key, value in record.items()
        if key.startswith("version_") and value
    }
    versions = {"python": record["python"]} | found
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _main_table(summaries: list[Summary], baseline: str) -> str:
    rivals = [s.median_seconds for s in summaries if s.solver == baseline and s.seconds]

    def number(key: str, form: str, scale: float = 1.0) -> Callable[[Summary], str]:
        return lambda summary: (
            f"{scale * summary.medians[key]:{form}}" if key in summary.medians else ""
        )

    def seconds(summary: Summary) -> str:
        times = summary.seconds
        return f"{summary.median_seconds:.2f} ({min(times):.2f} to {max(times):.2f})"

    columns: dict[str, Callable[[Summary], str]] = {
        "seconds": seconds,
        f"/ {baseline}": lambda one: f"{one.median_seconds / min(rivals):.2f}" if rivals else "",
        "CPU s": number("cpu_seconds", ".2f"),
        "peak MB": number("peak_rss_bytes", ".0f", 1e-6),
        "test accuracy %": number("accuracy", ".2f", 100),
        "AUC": number("roc_auc", ".4f"),
        "score": number("score", ".4f"),
        "certified gap": number("certified_gap", ".2e"),
        "brute-force gap": number("verified_gap", ".2e"),
        "pair gap": lambda one: (
            number("pair_gap", ".2e")(one) or number("verified_pair_gap", ".2e")(one)
        ),
        "support": number("n_support", ".0f"),
        "iterations": number("iterations", ".0f"),
        "passes": number("passes", ".2f"),
        "G kernel values": number("kernel_evaluations", ".2f", 1e-9),
        "M kernel values/s": number("kernel_values_per_second", ".0f", 1e-6),
    }
    rows = []
    for summary in summaries:
        cells = [cell(summary) if summary.seconds else "" for cell in columns.values()]
        rows.append([f"`{summary.spec}`", summary.status, *cells])
    return table(["solver", "status", *columns], rows)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Markdown table; columns of numbers, which may have units behind them, to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    columns = zip(*cells, strict=True) if cells else ((),) * len(heads)
    rules = ["---:" if any(column) and _are_numbers(column) else "---" for column in columns]
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, rules, *cells))


def _are_numbers(cells: Sequence[str]) -> bool:
    return all(re.match(r"[-<>(*~ ]*\d|-?$", cell) for cell in cells)


# -- figure --------------------------------------------------------------------------------------


PANELS = (
    ("accuracy", 100, "test accuracy (%)", "linear"),
    ("roc_auc", 1, "test AUC", "linear"),
    ("certified_gap", 1, "certified relative gap", "log"),
)


def draw(records: Sequence[Record], path: Path) -> None:
    """Write a PNG: a row for each set, what is known of accuracy, AUC and gap against time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    summaries = [summary for summary in summarise(records) if summary.seconds]
    panels = [panel for panel in PANELS if any(panel[0] in one.medians for one in summaries)]
    datasets = list(dict.fromkeys(summary.dataset for summary in summaries))
    families = list(dict.fromkeys(summary.solver for summary in summaries))
    figure = Figure(figsize=(5.5 * len(panels), 3.6 * len(datasets)), layout="constrained")
    axes = figure.subplots(len(datasets), len(panels), squeeze=False)
    for row, dataset in zip(axes, datasets, strict=True):
        for ax, (key, scale, label, yscale) in zip(row, panels, strict=True):
            for color, family in enumerate(families):
                chosen = [s for s in summaries if (s.dataset, s.solver) == (dataset, family)]
                _draw_family(ax, chosen, key, scale, f"C{color}")
            ax.set(title=dataset, xlabel="wall time (s)", ylabel=label, xscale="log", yscale=yscale)
            ax.grid(alpha=0.3, which="both")
            if ax.lines:
                ax.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def _draw_family(ax: Any, chosen: list[Summary], key: str, scale: float, color: str) -> None:
    """One line through the settings of a solver, with the spread of their times."""
    known = sorted((s for s in chosen if key in s.medians), key=lambda s: s.median_seconds)
    if known:
        times = [s.median_seconds for s in known]
        least = [s.median_seconds - min(s.seconds) for s in known]
        most = [max(s.seconds) - s.median_seconds for s in known]
        values = [scale * s.medians[key] for s in known]
        how = {"marker": "o", "capsize": 2, "color": color, "label": known[0].solver}
        ax.errorbar(times, values, xerr=[least, most], **how)


# -- command -------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Write a page and a figure beside the records."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.report", description="Make a table and a figure from records."
    )
    parser.add_argument("records", type=Path, help="written by python -m bench.run")
    parser.add_argument("--session", help="start time of a run (default: the last one)")
    parser.add_argument(
        "--baseline",
        default="intelex-svc",
        help="solver to compare times with (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    records = read_records(args.records, args.session)
    args.records.with_suffix(".md").write_text(markdown(records, args.baseline))
    try:
        draw(records, args.records.with_suffix(".png"))
    except ImportError:
        print("matplotlib is not installed: no figure", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
