"""Runs as one page of HTML: a figure as SVG, a table of options, a table of results.

The page is one file without scripts or links. The figures are those of `ooc_fw.report.figures`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ooc_fw.report.figures import draw_runs, render
from ooc_fw.report.runlog import Run
from ooc_fw.system.memory import format_bytes

_MOST_ITEMS = 50  # of a list that a table shows

_EXPLANATION = """
The sampled gap is over the rows looked at last: it guides training and proves nothing. The
certified gap is an upper bound over all rows of the file. Both are relative to rho, the squared
length of the weight vector. The objective f = rho / 2 is what the run minimises. Support vectors
are the rows that carry weight. Speeds are means over intervals of time; rows that are kept in
memory are read only once. Memory is the resident memory of the whole process. With several binary
classifiers, one for each pair of classes, time and counts are those of all together.
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>ooc-fw: {title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 75rem; padding: 1rem; }}
p {{ max-width: 50rem; }}
.wide {{ overflow-x: auto; }}
svg {{ background: white; display: block; height: auto; min-width: 42rem; width: 100%; }}
table {{ border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }}
th, td {{ border-bottom: 1px solid gray; overflow-wrap: anywhere; padding: 0.25rem 1rem 0.25rem 0;
  text-align: left; vertical-align: top; }}
tr.differs td {{ font-weight: 600; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def page(runs: Sequence[Run]) -> str:
    """Page of one run or more; InputError when matplotlib is not installed."""
    title = runs[0].label if len(runs) == 1 else f"{len(runs)} training runs"
    parts = ["<ul>", *(f"<li>{_text(_outcome(run))}</li>" for run in runs), "</ul>"]
    if any(run.n_events > 0 for run in runs):
        svg = render(draw_runs(runs), "svg").decode()
        svg = svg[svg.index("<svg") :].replace("<svg", '<svg role="img" aria-label="Figures"', 1)
        parts += [f'<div class="wide">{svg}</div>', f"<p>{_EXPLANATION}</p>"]
    else:
        parts.append("<p>No progress was logged: there is nothing to draw.</p>")
    parts.append("<h2>Options</h2>\n<p>Options in which the runs differ stand out.</p>")
    parts.append(_comparison(runs, [_options(run) for run in runs], mark=True))
    parts.append("<h2>Results</h2>\n<p>As reported at the end; gaps are relative.</p>")
    parts.append(_comparison(runs, [_results(run) for run in runs]))
    for run in runs:
        results = sorted(run.classifier_results, key=_gap_of, reverse=True)
        if results:
            names = list(dict.fromkeys(name for each in results for name in each))
            rows = [[_value(each.get(name)) for name in names] for each in results]
            parts.append(f"<h2>Binary classifiers of {_text(run.label)}</h2>")
            parts.append("<p>The largest gap first.</p>")
            parts.append(_table([name.replace("_", " ") for name in names], rows))
    return _PAGE.format(title=_text(title), body="\n".join(parts))


def _text(value: object) -> str:
    return html.escape(str(value))


def _gap_of(result: Mapping[str, Any]) -> float:
    gap = result.get("certified_gap")
    return gap if isinstance(gap, int | float) else math.inf


def _outcome(run: Run) -> str:
    """What became of a run, in a sentence."""
    if run.end:
        certified, sampled = run.end.get("certified_gap"), run.end.get("sampled_gap")
        gap = f"certified relative gap {_value(certified)}"
        if certified is None:
            gap = f"sampled relative gap {_value(sampled)}, not certified"
        if run.end.get("gap_scope") == "span":
            gap += f", within the span of the {run.end.get('n_support')} landmarks"
        return f"{run.label}: {run.end.get('status', 'ended')}, {gap}."
    if run.n_events == 0:
        return f"{run.label}: the log has no end and no progress."
    seconds = _value(run.columns["elapsed_s"][-1])
    return (
        f"{run.label}: the log has no end. The run was killed, or is still under way: {seconds} s "
        f"so far, last seen in phase {run.phases[-1]}."
    )


def _options(run: Run) -> dict[str, Any]:
    options = {k: v for k, v in run.start.items() if k not in ("event", "options", "kernel")}
    kernel = run.start.get("kernel")
    if isinstance(kernel, dict):
        options |= {"kernel" if name == "name" else name: value for name, value in kernel.items()}
    return options | run.options


def _results(run: Run) -> dict[str, Any]:
    """Results at the end of a run, or what was known when the log ended."""
    if run.end:
        elsewhere = {"event"} | ({"machines"} if run.classifier_results else set())
        elsewhere |= {name for name, value in _options(run).items() if run.end.get(name) == value}
        return {name: value for name, value in run.end.items() if name not in elsewhere}
    # The last certified gap is left out: it is not that of the last weights.
    names = [name for name in run.columns if name != "certified_gap"] if run.n_events else []
    known = {name: float(run.columns[name][-1]) for name in names}
    return {"status": "no end in the log", **known, "steps": run.steps}


def _comparison(
    runs: Sequence[Run], columns: Sequence[Mapping[str, Any]], *, mark: bool = False
) -> str:
    """A table with one column of names and values for each run."""
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name.replace("_", " "), *(_cell(name, c) for c in columns)] for name in names]
    return _table(["", *(run.label for run in runs)], rows, mark=mark)


def _cell(name: str, values: Mapping[str, Any]) -> str:
    value = values.get(name, "")
    if name.endswith("_bytes") or name in ("bytes_read", "memory_limit"):
        if isinstance(value, int | float) and value == value:
            return format_bytes(int(value))
    return _value(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, mark: bool = False) -> str:
    lines = ["<tr>" + "".join(f"<th>{_text(name)}</th>" for name in head) + "</tr>"]
    for row in rows:
        look = ' class="differs"' if mark and len(set(row[1:])) > 1 else ""
        cells = "".join(f"<td>{_text(cell)}</td>" for cell in row)
        lines.append(f"<tr{look}>{cells}</tr>")
    return '<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _value(value: object) -> str:
    """A value as people read it."""
    if value is None or value != value:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_value(item)}" for k, item in value.items() if item) or "none"
    if isinstance(value, list | tuple):
        more = f", ... ({len(value)} in all)" if len(value) > _MOST_ITEMS else ""
        return "; ".join(_value(item) for item in value[:_MOST_ITEMS]) + more
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
