"""The page of results: a summary, then every table and figure with its claims."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.environment import environment
from bench.papers.data import HOME, SETS, read_toml
from bench.papers.entries import Entry
from bench.papers.runs import Run, Study
from bench.published import table
from ooc_fw.solver.state import Status

AT = {
    "gap": ("PARTAN and randomization papers", "models that stop at an absolute gap of 1e-4"),
    "ball": ("MEB and SWAP papers", "models that stop at the (1 + 1e-6)-ball"),
    "optimum": ("rules of today", "optimal models"),
}
"""By `Run.chosen_at`, whose C it is, and of what models."""

WORDS = read_toml("entries.toml")
"""By paper: its title, and the words of each entry."""

Key = tuple[str, str]
"""Names of a paper and of an entry."""


def write(entries: Mapping[Key, Entry | None], study: Study, figures: Path) -> str:
    """Show entries whose runs are there; the page as Markdown."""
    summary = []
    sections: dict[str, list[str]] = {}
    for key, entry in entries.items():
        row, *texts = _section(key, entry, study, figures)
        summary.append(row)
        sections.setdefault(f"## {WORDS[key[0]]['title']}", []).extend(texts)
    heads = ["paper", "table or figure", "claims that hold", "", "why"]
    parts = [_head(study), "## Summary", table(heads, summary), "## Data", _data()]
    for title, texts in sections.items():
        parts += [title, *texts]
    return "\n\n".join(part.strip() for part in parts) + "\n"


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


def _section(key: Key, entry: Entry | None, study: Study, figures: Path) -> Iterator[Any]:
    """A row of the summary, then paragraphs."""
    words: dict[str, str] = WORDS[key[0]]["entries"][key[1]]
    heading = f"{key[0].upper()}, {words['title']}"
    anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
    row = [key[0], f"[{words['title']}](#{anchor})"]
    if entry is None:
        why = words["absent"]
        yield [*row, "", "cannot be had, or holds no measurement", why]
        yield f"### {heading}"
        yield why[0].upper() + why[1:] + "."
        return
    text, claims = entry.show(study, figures)
    failed = [claim for claim, holds in claims.items() if not holds]
    held = f"{len(claims) - len(failed)} of {len(claims)}" if claims else ""
    differs = "" if study.library.quick else " ".join(words.get("differs", "").split())
    why = differs or "; ".join(failed)
    yield [*row, held, "differs" if failed else "reproduced", why]
    yield f"### {heading}"
    yield f"`python -m bench.papers {key[0]} {key[1]}`"
    made = study.all_of(entry.runs)
    yield _parameters(made)
    yield text
    if "text" in words:
        yield words["text"]
    limit = [run for run in made if study[run]["status"] == Status.TIME_LIMIT]
    if limit:
        ended = (f"{run.data} {run.method} ({study[run]['seconds']:.0f} s)" for run in limit)
        yield f"Ended by the time limit, so that seconds are a lower bound: {', '.join(ended)}."
    if claims:
        yield table(["claim", "here"], [[c, "yes" if h else "**no**"] for c, h in claims.items()])
    if differs:
        yield f"Why figures differ: {differs}"


def _parameters(made: Sequence[Run]) -> str:
    """What all runs of an entry were told, in one line."""
    fields: dict[str, list[str]] = {
        "kernel": [run.kernel for run in made],
        "oracle": [run.oracle for run in made],
        "stopping": [f"{run.stopping} {run.tol:g}" for run in made],
        "C": [f"chosen for {AT[run.chosen_at][1]}" for run in made if run.C is None]
        or ["each of those drawn"],
        "seeds": sorted({str(run.seed) for run in made}),
    }
    return "; ".join(f"{name}: {' or '.join(dict.fromkeys(own))}" for name, own in fields.items())
