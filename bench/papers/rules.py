"""The step rules of today beside the papers': what it takes them to reach a gap.

All with the exact gap of all rows, from the same 20 random rows, to an absolute gap of 1e-6.
"""

from __future__ import annotations

from pathlib import Path

from bench.papers.entries import Entry, Panel, Shown, draw
from bench.papers.runs import DECADES, Run, Study
from bench.published import table

SETS = ("w7a", "ijcnn1", "a9a", "usps", "kdd-binary")
ROWS = 5_000
MOST = 60_000  # iterations at which a rule gives up
PAPERS = ("fw", "partan", "mfw", "swap", "swap2", "cvm")
RULES = (*PAPERS, "corrective")
"""Methods, with the full oracle."""
DROPS = [rule for rule in RULES if rule not in ("fw", "partan", "cvm", "corrective")]


def _run(name: str, rule: str) -> Run:
    return Run(name, rule, lmo="full", tol=1e-6, rows=ROWS, path=True, max_iter=MOST)


def shown(study: Study, folder: Path) -> Shown:
    rows, panels = [], []
    seconds: dict[tuple[str, str], float] = {}
    for name in SETS:
        lines = {}
        for rule in RULES:
            record = study[_run(name, rule)]
            reached = [record["reached"].get(f"{tol:g}") for tol in DECADES]
            cells = [
                f"{p[0]:,} / {p[4] / 1e6:.3g} / {p[3]:.2g}" if p else f"> {record['iterations']:,}"
                for p in reached
            ]
            seconds[name, rule] = reached[-1][3] if reached[-1] else float("inf")
            rows.append([name, rule, *cells, record["n_support"]])
            lines[rule] = [(p[3], max(p[1], 1e-7)) for p in record["points"][::4]]
        axes = {"xscale": "log", "yscale": "log", "xlim": (1e-3, None), "title": name}
        panels.append(Panel(lines, axes | {"xlabel": "seconds", "ylabel": "gap"}))
    styles = {rule: {"linestyle": "--"} for rule in RULES if rule not in PAPERS}
    best = {name: min((seconds[name, rule], rule) for rule in RULES)[1] for name in SETS}
    text = table(["set", "rule", *(f"{tol:.0e}" for tol in DECADES), "vectors"], rows) + (
        "\n\nIn each cell: iterations / million kernel values / seconds to that absolute gap, on "
        f"{ROWS:,} random rows of each set.\n\n"
        + draw(folder, "rules", panels, (18, 4), styles=styles)
        + "\n\nFastest to 1e-6: "
        + "; ".join(f"{name}: {best[name]} ({seconds[name, best[name]]:.2g} s)" for name in SETS)
    )
    return Shown(text, {
        "fully corrective steps of many vertices are the fastest to 1e-6 on most sets":
            sum(best[name] == "corrective" for name in SETS) >= 3,
        "among single steps, those that drop vertices reach 1e-6 sooner than FW":
            all(min(seconds[s, rule] for rule in DROPS) < seconds[s, "fw"] for s in SETS),
    })  # fmt: skip


RUNS = [_run(name, rule) for name in SETS for rule in RULES]
ENTRIES = {"rules": {"rules": Entry(RUNS, shown)}}
