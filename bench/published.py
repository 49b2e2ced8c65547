"""Tables of the texts, made from committed records: ``python -m bench.published [--write]``.

A table NAME stands between ``<!-- table: NAME -->`` and ``<!-- end -->``. Its records are those of
`bench.run` that say so in `table`, in a file of ``bench/results/``. Without ``--write`` status 1
says that a text differs from its records.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.process import ROOT

Record = dict[str, Any]

RESULTS = ROOT / "bench" / "results"
TEXTS = (
    ROOT / "README.md",
    ROOT / "bench" / "README.md",
    *sorted((ROOT / "ooc_fw" / "guides").glob("*.md")),
)


class Column(NamedTuple):
    """A column of figures: the field, its head, and whose it is."""

    field: str
    head: str
    of: str = ".*"  # a pattern for the specs


class Table(NamedTuple):
    """Heads of the columns that name a row, how a record names it, and the columns of figures."""

    heads: tuple[str, ...]
    row: Callable[[Record], tuple[str, ...]]
    columns: Sequence[Column]


def size(value: float) -> str:
    """Bytes as MiB or GiB."""
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def gap(value: float) -> str:
    """A gap in scientific notation, without the zero of the exponent."""
    return f"{value:.1e}".replace("e-0", "e-")


FIELDS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "seconds": ("time", lambda value: f"{value:.1f} s" if value < 100 else f"{value:.0f} s"),
    "peak_rss_bytes": ("peak", size),
    "rows_bytes": ("rows", size),
    "memory_limit": ("limit", lambda value: re.sub(r"(?=[kMG]iB)", " ", value)),
    "certified_gap": ("certified gap", gap),
    "objective_gap": ("objective within", gap),
    "verified_gap": ("gap by brute force", gap),
    "accuracy": ("accuracy", lambda value: f"{100 * value:.2f} %"),
    "roc_auc": ("ROC AUC", "{:.4f}".format),
    "score": ("score", "{:.4f}".format),
    "work": ("work", "{:.2g}".format),
    "kernel_evaluations": ("kernel values", "{:.1e}".format),
    "iterations": ("iterations", "{:,}".format),
    "n_support": ("vectors", "{:,}".format),
    "n_trained": ("rows", "{:,}".format),
    "dataset": ("`--sets`", "`{}`".format),
}
"""The usual head of a field, and the form of its cells."""


def columns(fields: str, of: str = ".*", first: str = "") -> list[Column]:
    """Columns with their usual heads, but that of the first one."""
    own = [Column(field, FIELDS[field][0], of) for field in fields.split()]
    return [own[0]._replace(head=first or own[0].head), *own[1:]]


def titled(record: Record) -> tuple[str]:
    """The set with its size."""
    classes = f", {record['n_classes']} classes" if record["n_classes"] > 2 else ""
    return (f"{record['title']}, {record['n_rows']:,} x {record['n_features']:,}{classes}",)


def aimed(word: str) -> Callable[[Record], tuple[str]]:
    """The set with its class or column."""
    return lambda record: (f"{record['title']}, {word} {record['target']}",)


def by_spec(record: Record) -> tuple[str, str]:
    """The set and the solver."""
    return record["dataset"], f"`{record['spec']}`"


RUN = "rows_bytes memory_limit peak_rss_bytes seconds work objective_gap accuracy dataset"
TABLES = {
    "proof": Table(
        ("set",),
        titled,
        [
            Column("memory_limit", "limit", "ooc-fw.*"),
            Column("peak_rss_bytes", "peak", "ooc-fw.*"),
            Column("seconds", "time", "ooc-fw.*"),
            Column("n_support", "vectors", "ooc-fw.*"),
            Column("objective_gap", "objective within", "ooc-fw.*"),
            Column("accuracy", "accuracy", "ooc-fw.*"),
            Column("seconds", "a sample", "subsample.*"),
            Column("accuracy", "accuracy", "subsample.*"),
            Column("accuracy", "linear", "sgd.*"),
            Column("dataset", "`--sets`", "ooc-fw.*"),
        ],
    ),
    "size": Table(("set",), titled, columns(RUN)),
    "measured": Table(
        ("set",),
        titled,
        columns("seconds peak_rss_bytes objective_gap accuracy", "ooc-fw.*", "ooc-fw")
        + columns("seconds peak_rss_bytes accuracy", "intelex-svc.*", "intelex SVC")
        + columns("dataset"),
    ),
    "noisy": Table(
        ("set", "solver"), by_spec, columns("n_support accuracy roc_auc seconds peak_rss_bytes")
    ),
    "growth": Table(
        ("kind", "rows"),
        lambda record: (record["title"], f"{record['n_rows']:,}"),
        columns("seconds kernel_evaluations peak_rss_bytes accuracy", "ooc-fw.*", "ooc-fw")
        + columns("seconds peak_rss_bytes accuracy", "intelex-svc.*", "intelex SVC"),
    ),
    "methods": Table(
        ("method",),
        lambda record: (f"`{record['method']}`",),
        [
            Column("iterations", "iterations to 1e-1", ".*tol=1e-1"),
            Column("iterations", "to 1e-2", ".*tol=1e-2"),
            Column("n_support", "support vectors at 1e-2", ".*tol=1e-2"),
        ],
    ),
    "novelty": Table(
        ("ordinary rows of",),
        aimed("class"),
        [
            Column("n_trained", "rows", "one-class"),
            Column("score", "ROC AUC", "one-class"),
            Column("n_trained", "rows", "sklearn-one-class"),
            Column("score", "ROC AUC of OneClassSVM", "sklearn-one-class"),
        ],
    ),
    "regression": Table(
        ("target",),
        aimed("column"),
        [
            Column("n_trained", "rows", "svr"),
            Column("score", "R^2, FrankWolfeSVR", "svr"),
            Column("score", "SVR", "sklearn-svr"),
            Column("score", "FrankWolfeSVR, epsilon 0", "svr:epsilon=0"),
            Column("score", "KernelRidge", "kernel-ridge"),
        ],
    ),
    # Of sets and solvers that were named; in no text.
    "runs": Table(
        ("set", "solver"),
        by_spec,
        columns("seconds peak_rss_bytes accuracy roc_auc certified_gap verified_gap n_support"),
    ),
}


def markdown(name: str, records: Iterable[Record]) -> str:
    """A table of those records that are its own."""
    form, rows = TABLES[name], dict[tuple[str, ...], dict[Column, str]]()
    for record in records:
        if record["table"] == name:
            cells = rows.setdefault(form.row(record), {})
            for column in form.columns:
                if re.fullmatch(column.of, record["spec"]):
                    cells[column] = _cell(record, column.field)
    heads = [*form.heads, *(column.head for column in form.columns)]
    lines = [[*row, *(cells.get(c, "") for c in form.columns)] for row, cells in rows.items()]
    return table(heads, lines)


def _cell(record: Record, field: str) -> str:
    if field == "seconds" and record["status"] == "failed":
        return "failed"
    if record.get(field) is None:
        return ""
    late = "> " if field == "seconds" and record["status"] == "timeout" else ""
    return late + FIELDS[field][1](record[field])


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Markdown table; columns of numbers, which may have units behind them, to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    columns = zip(*cells, strict=True) if cells else ((),) * len(heads)
    rules = ["---:" if any(column) and _are_numbers(column) else "---" for column in columns]
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, rules, *cells))


def _are_numbers(cells: Sequence[str]) -> bool:
    return all(re.match(r"[-<>(*~ ]*\d|-?$", cell) for cell in cells)


def read_lines(path: Path) -> list[Record]:
    """Records of a file, which may not be there."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line.replace('"passes":', '"work":')) for line in lines]  # its other name


def put(path: Path, records: Iterable[Record]) -> None:
    """Write the records of a file."""
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


def published() -> list[Record]:
    """All records that tables are made from."""
    return [record for path in sorted(RESULTS.glob("*.jsonl")) for record in read_lines(path)]


def written(text: str) -> str:
    """A text with its tables made anew."""
    form, records = (
        re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL),
        published(),
    )
    return form.sub(lambda found: f"{found[1]}{markdown(found[2], records)}\n{found[3]}", text)


def main(argv: list[str]) -> int:
    """Write the tables, or say which texts differ from their records."""
    differ = [path for path in TEXTS if written(path.read_text()) != path.read_text()]
    for path in differ:
        print(path.relative_to(ROOT))
        if argv == ["--write"]:
            path.write_text(written(path.read_text()))
    return int(bool(differ) and argv != ["--write"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
