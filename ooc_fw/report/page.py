"""Runs as a page of HTML: figures as SVG, a table of options, a table of results.

The page is one file without scripts or links. Colours of text, background and lines follow the
reader's choice of light or dark.

Owns words, tables and colours of the page. The figures are those of `ooc_fw.report.figures`.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ooc_fw.report import figures
from ooc_fw.report.runlog import Run
from ooc_fw.system.memory import format_bytes

_DARK = {
    **dict(
        zip(
            figures.RUN_COLORS,
            ("#58a6e8", "#ff8a4c", "#34c99a", "#e292c9", "#e5b53a", "#a5dcff"),
            strict=True,
        )
    ),
    "#0072b3": "#58a6e8",
    "#d55e01": "#ff8a4c",
    "#009e74": "#34c99a",
    "#b98201": "#e5b53a",
    "#b8609b": "#e292c9",
    "#767676": "#a0a0a0",
    figures.TEXT: "#e6e8eb",
    figures.GRID: "#3d434c",
    figures.SWEEP: "#2b3038",
    figures.LIMIT: "#ff8095",
}
"""Colours of figures on a dark background, by those on a light one."""

_SECTIONS = (
    (
        "Gap",
        ("gap",),
        "The sampled gap is over the rows last looked at: it guides training and proves nothing. "
        "The certified gap is over all rows of the file, an upper bound. Both are relative to rho, "
        "the squared length of the weight vector, on a logarithmic scale.",
    ),
    (
        "Objective and support",
        ("objective", "support"),
        "The objective f = rho / 2 is what the run minimises. Support vectors are the rows that "
        "carry weight.",
    ),
    (
        "Speed",
        ("rows", "kernel"),
        "Means between two events of the log. Rows that are kept in memory are read once only.",
    ),
    (
        "Memory and steps",
        ("memory", "steps"),
        "Resident memory of the whole process, interpreter and libraries included. A dropped "
        "vertex is a row that lost its weight in a step of any kind.",
    ),
)

_FACTS = {
    "time": "started",
    "data": "data",
    "n_rows": "rows",
    "n_features": "features",
}
"""What a start event says besides the options, and its names in the table."""

_RESULTS = {
    "status": "status",
    "method": "method taken",
    "lmo": "oracle taken",
    "certified_gap": "certified gap",
    "sampled_gap": "sampled gap",
    "pair_gap": "pair gap",
    "objective": "objective",
    "rho": "rho",
    "n_support": "support vectors",
    "n_machines": "machines",
    "iterations": "iterations",
    "steps": "steps",
    "passes": "passes",
    "kernel_evaluations": "kernel values",
    "rows_read": "rows read",
    "bytes_read": "read",
    "seconds": "seconds",
    "sweep_seconds": "seconds of the last sweep",
    "peak_rss_bytes": "memory at the peak",
    "model": "model",
}
"""What an end event says, in this order; the rest follows under its own names."""

_STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --soft: #f4f5f7; %s }
@media (prefers-color-scheme: dark) {
  :root { --back: #16191d; --soft: #20242a; %s }
}
body { background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif;
  margin: 0 auto; max-width: 75rem; padding: 1rem 1.5rem 3rem; }
h1 { font-size: 1.6rem; margin: 1rem 0 0; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 0.3rem; }
p { margin: 0.3rem 0 0.8rem; max-width: 50rem; }
ul { margin: 0.3rem 0 0.8rem; padding-left: 1.2rem; }
.wide { overflow-x: auto; }
.wide svg { display: block; height: auto; min-width: 42rem; width: 100%%; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--grid); padding: 0.25rem 1.2rem 0.25rem 0;
  text-align: left; vertical-align: top; }
td { overflow-wrap: anywhere; min-width: 5rem; }
th { font-weight: 600; white-space: nowrap; }
thead th { border-bottom-width: 2px; }
tr.differs td { background: var(--soft); font-weight: 600; }
.key { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.4em; }
"""


def page(runs: Sequence[Run]) -> str:
    """Whole page.

    Parameters
    ----------
    runs : sequence of Run
        One at least.

    Raises
    ------
    InputError
        When matplotlib is not installed.
    """
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} training runs"
    items = "\n".join(f"<li>{_text(_sentence(run))}</li>" for run in runs)
    parts = [f"<h1>{_text(title)}</h1>\n<ul>\n{items}\n</ul>"]
    if any(run.n_events > 0 for run in runs):
        for k, (name, panels, words) in enumerate(_SECTIONS):
            picture = _svg(runs, panels, k, f"{name} of {title}")
            words = f"<p>{_text(words)}</p>"
            parts.append(f'<h2>{name}</h2>\n{words}\n<div class="wide">{picture}</div>')
    else:
        parts.append("<p>No progress was logged: there is nothing to draw.</p>")
    more = " Options in which the runs differ stand out." if len(runs) > 1 else ""
    parts.append(f"<h2>Options</h2>\n<p>As the runs were told.{more}</p>")
    parts.append(_table(runs, [_options(run) for run in runs], mark=True))
    parts.append("<h2>Results</h2>\n<p>As reported at the end; gaps are relative.</p>")
    parts.append(_table(runs, [_results(run) for run in runs], mark=False))
    parts += [_machines(run) for run in runs if _machines_of(run)]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>ooc-fw: {_text(title)}</title>\n<style>{_style()}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _text(value: object) -> str:
    return html.escape(str(value))


def _name(field: str) -> str:
    """Name of a field of the log, for people."""
    return _text(field.removeprefix("n_").replace("_", " "))


# -- colours and figures -------------------------------------------------------------------------


def _variable(color: str) -> str:
    """Name of the CSS variable that stands for a colour of `ooc_fw.report.figures`."""
    names = {figures.TEXT: "--text", figures.GRID: "--grid"}
    return names.get(color, f"--c{color[1:]}")


def _style() -> str:
    light, dark = (
        " ".join(f"{_variable(color)}: {shown};" for color, shown in colors.items())
        for colors in ({color: color for color in _DARK}, _DARK)
    )
    return _STYLE % (light, dark)


def _svg(runs: Sequence[Run], panels: Sequence[str], number: int, title: str) -> str:
    """Panels as an SVG element, with ids of its own and colours that follow the page."""
    buffer = io.StringIO()
    figure = figures.draw(runs, panels)
    figure.patch.set_alpha(0.0)
    figures.write_svg(figure, buffer)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>p{number}-", text)
    for color in _DARK:
        text = text.replace(color, f"var({_variable(color)})")
    return text.replace("<svg", f'<svg role="img" aria-label="{_text(title)}"', 1)


# -- words and tables ----------------------------------------------------------------------------


def _sentence(run: Run) -> str:
    """What became of a run."""
    if run.end is not None:
        gap, sampled = run.end.get("certified_gap"), run.end.get("sampled_gap")
        known = (
            f"certified relative gap {_value(gap)}"
            if gap is not None
            else (f"sampled relative gap {_value(sampled)}, not certified")
        )
        seconds = run.end.get("seconds")
        took = "" if seconds is None else f", {_value(seconds)} s"
        return f"{run.label}: {run.end.get('status', 'ended')}, {known}{took}."
    if run.n_events == 0:
        return f"{run.label}: the log has no end and no progress."
    return (
        f"{run.label}: the log has no end. The run was killed, or is still under way: "
        f"{_value(run.columns['elapsed_s'][-1])} s so far, last seen in phase {run.phases[-1]}."
    )


def _options(run: Run) -> dict[str, Any]:
    """Options of a run as the table shows them."""
    found = {name: run.start[key] for key, name in _FACTS.items() if key in run.start}
    if "started" in found:
        found["started"] = str(found["started"]).replace("T", " ").replace("+00:00", " UTC")
    kernel = run.start.get("kernel")
    if isinstance(kernel, dict):
        others = () if kernel.get("name") == "poly" else ("degree", "coef0")
        found |= {"kernel" if key == "name" else key: v for key, v in kernel.items()}
        found = {key: value for key, value in found.items() if key not in others}
    found |= run.options
    limit = run.memory_limit
    if limit is not None:
        found["memory_limit"] = format_bytes(int(limit))
    return found


def _results(run: Run) -> dict[str, Any]:
    """Results of a run as the table shows them: those of its end, else what is known by then."""
    values: dict[str, Any] = dict(run.end or {})
    if run.end is None and run.n_events > 0:
        values = {name: column[-1] for name, column in run.columns.items()}
        values |= {"iterations": values["iteration"], "seconds": values["elapsed_s"]}
        values["steps"] = {kind: counts[-1] for kind, counts in run.steps.items()}
        values = {name: value for name, value in values.items() if name in _RESULTS}
        values["certified_gap"] = None  # what is known is of weights that are no more
    values.setdefault("status", "no end in the log")
    for name in ("bytes_read", "peak_rss_bytes"):
        size = values.get(name)
        if isinstance(size, int | float) and size == size:
            values[name] = format_bytes(int(size))
    found = {name: values.pop(key) for key, name in _RESULTS.items() if key in values}
    told = {"event", *_FACTS, *_options(run)}
    if _machines_of(run):
        told.add("machines")
    return found | {key: value for key, value in values.items() if key not in told}


def _table(runs: Sequence[Run], columns: Sequence[dict[str, Any]], *, mark: bool) -> str:
    """One row for each name, one column for each run."""
    heads = "".join(f"<th>{_key(runs, k)}{_text(run.label)}</th>" for k, run in enumerate(runs))
    rows = []
    for name in dict.fromkeys(name for column in columns for name in column):
        cells = [_value(column.get(name)) if name in column else "" for column in columns]
        different = mark and len(set(cells)) > 1 and name != "started"
        differs = ' class="differs"' if different else ""
        data = "".join(f"<td>{_text(cell)}</td>" for cell in cells)
        rows.append(f'<tr{differs}><th scope="row">{_name(name)}</th>{data}</tr>')
    return (
        f'<div class="wide"><table>\n<thead><tr><th></th>{heads}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody>\n</table></div>"
    )


def _machines_of(run: Run) -> list[dict[str, Any]]:
    """What a run of several machines reports of each."""
    machines = (run.end or {}).get("machines")
    known = isinstance(machines, list) and all(isinstance(each, dict) for each in machines)
    return machines if known and machines is not None else []


def _machines(run: Run) -> str:
    """A table of machines, the worst gap first."""

    def badness(machine: dict[str, Any]) -> float:
        gap = machine.get("certified_gap")
        return gap if isinstance(gap, int | float) else math.inf

    machines = sorted(_machines_of(run), key=badness, reverse=True)
    names = list(dict.fromkeys(name for machine in machines for name in machine))
    heads = "".join(f'<th scope="col">{_name(name)}</th>' for name in names)
    rows = [
        "<tr>" + "".join(f"<td>{_text(_value(each.get(name)))}</td>" for name in names) + "</tr>"
        for each in machines
    ]
    return (
        f"<h2>Machines of {_text(run.label)}</h2>\n<p>One for each pair of classes, the largest "
        f'gap first.</p>\n<div class="wide"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody>\n</table></div>"
    )


def _key(runs: Sequence[Run], k: int) -> str:
    """A spot in the colour of a run's lines."""
    if len(runs) == 1:
        return ""
    color = _variable(figures.run_color(runs, k))
    return f'<span class="key" style="background: var({color})"></span>'


def _value(value: object) -> str:
    """A value for people."""
    if value is None or value != value:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        shown = {key: item for key, item in value.items() if item != 0}
        return ", ".join(f"{key} {_value(item)}" for key, item in shown.items()) or "none"
    if isinstance(value, list | tuple):
        more = f", ... ({len(value)} in all)" if len(value) > _ITEMS else ""
        return "; ".join(_value(item) for item in value[:_ITEMS]) + more
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return f"{int(value):,}" if abs(value) < 1e15 else f"{value:.6g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_ITEMS = 50
