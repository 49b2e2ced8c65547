"""Tables of the texts, made from committed records: ``python -m bench.published [--write]``.

A table NAME stands between ``<!-- table: NAME -->`` and ``<!-- end -->`` and is made from
``bench/results/NAME.jsonl``. Its records are those of `bench.run`, with the row of the table in
`label` and, where a solver has several columns, the one that is meant in `column`. Records of
other origin say it in `source`. Without ``--write`` status 1 says that a text differs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

from bench.process import ROOT
from bench.report import table
from bench.run import read_lines

RESULTS = ROOT / "bench" / "results"
TEXTS = (
    ROOT / "README.md",
    ROOT / "bench" / "README.md",
    *sorted((ROOT / "ooc_fw" / "guides").glob("*.md")),
)

FORMS: dict[str, Callable[[Any], str]] = {
    "seconds": "{:.1f} s".format,
    "peak_rss_bytes": lambda value: f"{value / 1e6:.0f} MB",
    "certified_gap": lambda value: f"{value:.1e}".replace("e-0", "e-"),
    "accuracy": lambda value: f"{100 * value:.2f} %",
    "score": "{:.4f}".format,
    "iterations": "{:,}".format,
}
PLAIN = FORMS | {"seconds": "{:g}".format, "accuracy": lambda value: f"{100 * value:.1f} %"}

Column = tuple[str, str, str]  # head, solver or the record's `column`, field
TABLES: dict[str, tuple[dict[str, Callable[[Any], str]], str, tuple[Column, ...]]] = {
    "measured": (
        FORMS,
        "set",
        (
            ("ooc-fw", "ooc-fw", "seconds"),
            ("peak", "ooc-fw", "peak_rss_bytes"),
            ("certified gap", "ooc-fw", "certified_gap"),
            ("accuracy", "ooc-fw", "accuracy"),
            ("intelex SVC", "intelex-svc", "seconds"),
            ("peak", "intelex-svc", "peak_rss_bytes"),
            ("accuracy", "intelex-svc", "accuracy"),
        ),
    ),
    "noisy": (
        PLAIN,
        "model",
        (
            ("vectors", "", "n_support"),
            ("test accuracy", "", "accuracy"),
            ("seconds", "", "seconds"),
            ("peak memory", "", "peak_rss_bytes"),
        ),
    ),
    "methods": (
        FORMS,
        "method",
        (
            ("iterations to 1e-1", "1e-1", "iterations"),
            ("to 1e-2", "1e-2", "iterations"),
            ("support vectors at 1e-2", "1e-2", "n_support"),
        ),
    ),
    "novelty": (
        FORMS,
        "ordinary rows of",
        (
            ("rows", "one-class", "n_trained"),
            ("ROC AUC", "one-class", "score"),
            ("rows", "sklearn-one-class", "n_trained"),
            ("ROC AUC of OneClassSVM", "sklearn-one-class", "score"),
        ),
    ),
    "regression": (
        FORMS,
        "target",
        (
            ("rows", "svr", "n_trained"),
            ("R^2, FrankWolfeSVR", "svr", "score"),
            ("SVR", "sklearn-svr", "score"),
            ("FrankWolfeSVR, epsilon 0", "epsilon 0", "score"),
            ("KernelRidge", "kernel-ridge", "score"),
        ),
    ),
}
"""By name: how fields are written, the head of the first column, and the others. A row is made of
the records of one `label`; a column without a solver takes what each of them has."""


def markdown(name: str) -> str:
    """A table as it stands in the texts."""
    forms, head, columns = TABLES[name]
    rows: dict[str, dict[tuple[str, str], str]] = {}
    for record in read_lines(RESULTS / f"{name}.jsonl"):
        cells = rows.setdefault(record["label"], {})
        for _, solver, field in columns:
            if solver in ("", record.get("column", record["solver"])) and field in record:
                cells[solver, field] = forms.get(field, str)(record[field])
    lines = [
        [label, *(cells.get((solver, field), "") for _, solver, field in columns)]
        for label, cells in rows.items()
    ]
    return table([head, *(title for title, _, _ in columns)], lines)


def written(text: str) -> str:
    """A text with its tables made anew."""
    form = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return form.sub(lambda found: f"{found[1]}{markdown(found[2])}\n{found[3]}", text)


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
