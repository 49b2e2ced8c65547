"""The page of results: a summary, then every table and figure with its claims."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.environment import environment
from bench.papers.data import SETS
from bench.papers.entries import Claims, Entry
from bench.papers.runs import Run, Study
from bench.report import table
from ooc_fw.solver.state import Status

AT = {
    "gap": ("PARTAN and randomization papers", "models that stop at an absolute gap of 1e-4"),
    "ball": ("MEB and SWAP papers", "models that stop at the (1 + 1e-6)-ball"),
    "optimum": ("rules of today", "optimal models"),
}
"""By `Run.chosen_at`, whose C it is, and of what models."""

HOME = Path(__file__).parent
WORDS: dict[str, dict[str, Any]] = tomllib.loads((HOME / "entries.toml").read_text())
"""By paper: its title, and the words of each entry."""

Key = tuple[str, str]
"""Names of a paper and of an entry."""


class Section(NamedTuple):
    """An entry as it stands in the summary, and below."""

    claims: Claims
    verdict: str
    why: str
    text: str


def write(entries: Mapping[Key, Entry | None], study: Study, figures: Path) -> str:
    """Show entries whose runs are there; the page as Markdown."""
    sections = {key: _section(key, entry, study, figures) for key, entry in entries.items()}
    rows = []
    for key, own in sections.items():
        held = f"{sum(map(bool, own.claims.values()))} of {len(own.claims)}" if own.claims else ""
        heading = _heading(key)
        kept = (each for each in heading.lower() if each.isalnum() or each in " -_")
        anchor = "".join(kept).replace(" ", "-")
        link = f"[{_words(key)['title']}](#{anchor})"
        rows.append([key[0], link, held, own.verdict, own.why])
    heads = ["paper", "table or figure", "claims that hold", "", "why"]
    parts = [_head(study), "## Summary", table(heads, rows), "## Data", _data()]
    for paper in dict.fromkeys(paper for paper, _ in sections):
        parts.append(f"## {WORDS[paper]['title']}")
        parts += [own.text for key, own in sections.items() if key[0] == paper]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _words(key: Key) -> dict[str, str]:
    own: dict[str, str] = WORDS[key[0]]["entries"][key[1]]
    return own


def _heading(key: Key) -> str:
    return f"{key[0].upper()}, {_words(key)['title']}"


def _head(study: Study) -> str:
    """What holds for all of the page."""
    own = environment()
    packages = ", ".join(
        f"{name.removeprefix('version_')} {value}"
        for name, value in own.items()
        if name.startswith("version_") and not name.endswith(("intelex", "xgboost"))
    )
    machine = f"Machine: {own['cpu']}, {own['cpus']} CPUs, one of which was used. {packages}."
    if study.library.quick:
        machine += " **Thinned data (`--quick`): figures do not compare with the printed ones.**"
    return (HOME / "head.md").read_text().format(machine=machine, repeat=study.repeat)


def _data() -> str:
    """Sizes and parameters of every set, and what stands in for those that are not at hand."""
    rows = []
    for name, own in SETS.items():
        Cs = [f"{own['C'][at]:g}" if at in own["C"] else "" for at in AT]
        sizes = [f"{size:,}" for size in own["sizes"]]
        rows.append([name, *sizes, f"{own['sigma2']:g}", *Cs, own.get("note", "")])
    heads = ["set", "training rows", "test rows", "features", "classes", "sigma^2"]
    heads += [*(f"C, {whose}" for whose, _ in AT.values()), "note"]
    return (
        "How C is chosen for each paper is said above. Sets with a note are not the files that the "
        "papers had.\n\n" + table(heads, rows)
    )


def _section(key: Key, entry: Entry | None, study: Study, figures: Path) -> Section:
    words, lines = _words(key), [f"### {_heading(key)}"]
    if entry is None:
        why = words["absent"]
        text = "\n\n".join([*lines, why[0].upper() + why[1:] + "."])
        return Section({}, "cannot be had, or holds no measurement", why, text)
    shown = entry.show(study, figures)
    made = study.all_of(entry.runs)
    code = f"`bench/papers/{key[0]}.py`, `python -m bench.papers {key[0]} {key[1]}`"
    lines += [code, _parameters(made), shown.text]
    lines += [words["text"]] if "text" in words else []
    stopped = [
        f"{run.data} {run.method} ({study[run]['seconds']:.0f} s)"
        for run in made
        if study[run]["status"] == Status.TIME_LIMIT
    ]
    if stopped:
        lines.append(
            f"Ended by the time limit, so that seconds are a lower bound: {', '.join(stopped)}."
        )
    if shown.claims:
        rows = [[text, "yes" if holds else "**no**"] for text, holds in shown.claims.items()]
        lines.append(table(["claim", "here"], rows))
    differs = "" if study.library.quick else " ".join(words.get("differs", "").split())
    if differs:
        lines.append(f"Why figures differ: {differs}")
    failed = [text for text, holds in shown.claims.items() if not holds]
    verdict = "differs" if failed else "reproduced"
    return Section(shown.claims, verdict, differs or "; ".join(failed), "\n\n".join(lines))


def _parameters(made: Sequence[Run]) -> str:
    """What all runs of an entry were told, in one line."""
    fields: dict[str, list[str]] = {
        "kernel": [run.kernel for run in made],
        "oracle": [run.oracle for run in made],
        "stopping": [f"{run.stopping} {run.tol:g}" for run in made],
        "C": [
            f"chosen for {AT[run.chosen_at][1]}" if run.C is None else "each of those drawn"
            for run in made
        ],
        "seeds": sorted({str(run.seed) for run in made}),
    }
    return "; ".join(f"{name}: {' or '.join(dict.fromkeys(own))}" for name, own in fields.items())
