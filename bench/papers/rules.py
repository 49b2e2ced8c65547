"""The step rules of today beside the papers': what it takes them to reach a gap.

All with the exact gap of all rows, from the same 20 random rows, to an absolute gap of 1e-6.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.papers.entries import Absent, Claim, Entry, Shown, draw, legend_below
from bench.papers.runs import DECADES, Run, Study
from bench.report import table

SETS = ("w7a", "ijcnn1", "a9a", "usps", "kdd-binary")
ROWS = 5_000
MOST = 60_000  # iterations at which a rule gives up
RULES: tuple[tuple[str, str], ...] = (
    ("fw", "full"),
    ("partan", "full"),
    ("mfw", "full"),
    ("swap", "full"),
    ("swap2", "full"),
    ("bpcg", "full"),
    ("bpcg", "lazy"),
    ("qc", "full"),
    ("qc", "lazy"),
    ("cvm", "full"),
    ("corrective", "full"),
)
PAPERS = ("fw", "partan", "mfw", "swap", "swap2", "cvm")


def _runs(name: str) -> dict[tuple[str, str], Run]:
    return {
        (method, lmo): Run(name, method, lmo=lmo, tol=1e-6, rows=ROWS, path=True, max_iter=MOST)
        for method, lmo in RULES
    }


def runs(_: Study) -> list[Run]:
    return [run for name in SETS for run in _runs(name).values()]


def _label(method: str, lmo: str) -> str:
    return method if lmo == "full" else f"{method}, {lmo}"


def shown(study: Study, folder: Path) -> Shown:
    rows: list[list[object]] = []
    points: list[tuple[object, ...]] = []
    seconds: dict[tuple[str, str, str], float] = {}
    for name in SETS:
        for (method, lmo), run in _runs(name).items():
            record = study[run]
            cells = []
            for tol in DECADES:
                point = record["reached"].get(f"{tol:g}")
                cells.append(
                    f"> {record['iterations']:,}"
                    if point is None
                    else f"{point[0]:,} / {point[4] / 1e6:.3g} / {point[3]:.2g}"
                )
            last = record["reached"].get("1e-06")
            seconds[name, method, lmo] = float("inf") if last is None else last[3]
            rows.append([name, _label(method, lmo), *cells, record["n_support"]])
            points += [
                (name, _label(method, lmo), int(p[0]), p[1], p[3]) for p in record["points"][::4]
            ]

    def plot(figure: Any) -> None:
        for k, name in enumerate(SETS):
            axes = figure.add_subplot(1, len(SETS), k + 1)
            for j, (method, lmo) in enumerate(RULES):
                label = _label(method, lmo)
                line = [
                    (p[4], max(float(str(p[3])), 1e-7)) for p in points if p[:2] == (name, label)
                ]
                style = "-" if method in PAPERS else "--"
                axes.loglog(*zip(*line, strict=True), style, color=f"C{j % 10}", label=label)
            axes.set(title=name, xlabel="seconds", ylabel="gap", xlim=(1e-3, None))
        legend_below(figure)

    text = table(
        ["set", "rule", *(f"{tol:.0e}" for tol in DECADES), "vectors"],
        rows,
    )
    text += (
        "\n\nIn each cell: iterations / million kernel values / seconds to that absolute gap, on "
        f"{ROWS:,} random rows of each set.\n\n" + draw(folder, "rules", plot, (18, 4))
    )
    best = {name: min(RULES, key=lambda rule, name=name: seconds[name, *rule]) for name in SETS}
    text += "\n\nFastest to 1e-6: " + "; ".join(
        f"{name}: {_label(*best[name])} ({seconds[name, *best[name]]:.2g} s)" for name in SETS
    )
    singles = [rule for rule in RULES if rule[0] not in ("cvm", "corrective")]
    drops = [rule for rule in singles if rule[0] not in ("fw", "partan")]
    claims = [
        Claim("fully corrective steps of many vertices are the fastest to 1e-6 on most sets",
              sum(best[name] == ("corrective", "full") for name in SETS) >= 3),
        Claim("among single steps, those that drop vertices reach 1e-6 sooner than FW",
              all(min(seconds[name, *rule] for rule in drops) < seconds[name, "fw", "full"]
                  for name in SETS)),
        Claim("quadratic corrections shorten blended pairwise steps on most sets",
              sum(seconds[s, "qc", "full"] < seconds[s, "bpcg", "full"] for s in SETS) >= 3),
    ]  # fmt: skip
    return Shown(text + "\n\n" + THEORY, claims)


THEORY = """\
**Why.** On the simplex, f is a convex quadratic whose curvature along a direction between two
vertices is that of two rows. Toward steps shrink all weights to add one, so that a vertex that came
in by mistake fades out only as 1/k: the O(1/k) rate of Frank-Wolfe, tenfold iterations for each
decade. Away and pairwise steps remove it at once. Then the iterates end up on the face of the
optimum, on which f is strongly convex, and the gap falls by a constant factor a step: linear
convergence (Lacoste-Julien and Jaggi, 2015). PARTAN accelerates the first phase, without drop
steps, and keeps the rate of FW. Blended pairwise steps look for a pair within the support first and
admit a new vertex only when that has less to offer: fewest support vectors on the way, at the price
of more steps. A lazy oracle saves the column over all rows that each local step costs otherwise.

Once the face is known, all pairwise methods solve a linear system by exchanging two weights at a
time, which takes a number of steps in proportion to the condition of Q on the face. A quadratic
correction solves the system outright, as Wolfe's algorithm for the point of least norm does, and
ends where a weight would turn negative; it costs n^3/3 operations for a support of n, so that it is
taken only when the support has grown by an eighth, and up to 2,048 vertices. Fully corrective steps
on many violators (`corrective`) do the same work with far fewer looks at the data: their steps are
on kernel values in RAM, and new vertices come by the hundred. In-face steps (Freund, Grigas,
Mazumder, 2017) are on the simplex the away and local pairwise steps above. Block-coordinate
Frank-Wolfe needs a product of domains, and there is only one simplex here.
"""

TITLE = "Step rules of today beside the papers'"

ENTRIES: dict[str, Entry | Absent] = {
    "rules": Entry("Iterations, kernel values and seconds to 1e-2 ... 1e-6", runs, shown),
}
