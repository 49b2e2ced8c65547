"""The page of results: a summary, then every table and figure with its claims."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.environment import environment
from bench.papers.data import NOTES
from bench.papers.entries import Absent, Entry, Shown
from bench.papers.runs import (
    BRIEF_SECONDS,
    MODEL_ROWS,
    MOST_PATH_SECONDS,
    MOST_SECONDS,
    MOST_WATCHED_SECONDS,
    Run,
    Study,
)
from bench.report import table

Chosen = Mapping[tuple[str, str], Entry | Absent]
"""Entries by the names of their paper and their own."""

CHOSEN_FOR = {
    "gap": "PARTAN and randomization papers",
    "ball": "MEB and SWAP papers",
    "optimum": "rules of today",
}
MODELS = {
    "gap": "models that stop at an absolute gap of 1e-4",
    "ball": "models that stop at the (1 + 1e-6)-ball",
    "optimum": "optimal models",
}
"""By `Run.chosen_at`, whose C it is, and of what models."""

_HEAD = Path(__file__).with_name("head.md")
DIFFERS: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("differs.toml").read_text()
)
"""Why figures differ from the printed ones, by paper and entry; written after a whole run."""


def write(
    chosen: Chosen, titles: Mapping[str, str], study: Study, output: Path, settings: str
) -> str:
    """Show all entries whose runs are there; the page as Markdown."""
    figures = output / "figures"
    shown: dict[tuple[str, str], Shown] = {}
    for key, entry in chosen.items():
        if isinstance(entry, Entry):
            shown[key] = entry.show(study, figures)
    parts = [
        settings,
        "## Summary\n\n" + _summary(chosen, shown, study),
        "## Data\n\n" + _data(study),
    ]
    for paper, title in titles.items():
        own = {key: entry for key, entry in chosen.items() if key[0] == paper}
        if own:
            parts.append(f"## {title}")
            parts += [_section(entry, shown.get(key), key, study) for key, entry in own.items()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def head(study: Study) -> str:
    """What holds for all of the page."""
    own = environment()
    versions = ", ".join(
        f"{name.removeprefix('version_')} {value}"
        for name, value in own.items()
        if name.startswith("version_") and value and "intelex" not in name and "xgb" not in name
    )
    machine = f"Machine: {own['cpu']}, {own['cpus']} CPUs, one of which was used. {versions}."
    if study.library.quick:
        machine += " **Thinned data (`--quick`): figures do not compare with the printed ones.**"
    return _HEAD.read_text().format(
        machine=machine,
        model_rows=MODEL_ROWS,
        repeat=study.repeat,
        brief_seconds=BRIEF_SECONDS,
        seconds=MOST_SECONDS,
        path_seconds=MOST_PATH_SECONDS,
        watched_seconds=MOST_WATCHED_SECONDS,
    )


def _data(study: Study) -> str:
    """Sizes and parameters of every set, and what stands in for those that are not at hand."""
    choices = {at: study.choices(at) for at in CHOSEN_FOR}
    rows = []
    for name in sorted(set().union(*choices.values())):
        own = {at: found[name] for at, found in choices.items() if name in found}
        Cs = [f"{own[at]['C']:g}" if at in own else "" for at in choices]
        first = next(iter(own.values()))
        sizes = [f"{first[field]:,}" for field in ("n_train", "n_test", "n_features", "n_classes")]
        rows.append([name, *sizes, f"{1 / (2 * first['gamma']):.4g}", *Cs, NOTES.get(name, "")])
    heads = ["set", "training rows", "test rows", "features", "classes", "sigma^2"]
    return (
        "How C is chosen for each paper is said above. Sets with a note are not the files that the "
        "papers had.\n\n"
        + table([*heads, *(f"C, {of}" for of in CHOSEN_FOR.values()), "note"], rows)
    )


def _differs(key: tuple[str, str], study: Study) -> str:
    """What was written of an entry after the whole run, in one line."""
    if study.library.quick:
        return ""
    paper, name = key
    return " ".join(DIFFERS.get(paper, {}).get(name, "").split())


def _verdict(
    entry: Entry | Absent, shown: Shown | None, key: tuple[str, str], study: Study
) -> tuple[str, str]:
    if isinstance(entry, Absent):
        return "cannot be had, or holds no measurement", entry.why
    assert shown is not None
    failed = [claim.text for claim in shown.claims if not claim.holds]
    if not failed:
        return "reproduced", _differs(key, study)
    return "differs", _differs(key, study) or "; ".join(failed)


def _summary(chosen: Chosen, shown: Mapping[tuple[str, str], Shown], study: Study) -> str:
    rows = []
    for key, entry in chosen.items():
        claims = shown[key].claims if key in shown else []
        held = f"{sum(claim.holds for claim in claims)} of {len(claims)}" if claims else ""
        title = f"[{entry.title}](#{_anchor(_heading(entry, key))})"
        rows.append([key[0], title, held, *_verdict(entry, shown.get(key), key, study)])
    return table(["paper", "table or figure", "claims that hold", "", "why"], rows)


def _section(entry: Entry | Absent, shown: Shown | None, key: tuple[str, str], study: Study) -> str:
    lines = [f"### {_heading(entry, key)}"]
    if isinstance(entry, Absent):
        return "\n\n".join([*lines, entry.why[0].upper() + entry.why[1:] + "."])
    assert shown is not None
    code = f"`bench/papers/{key[0]}.py`, `python -m bench.papers {key[0]} {key[1]}`"
    lines += [f"{code}\n\n{_parameters(entry.runs(study))}", shown.text]
    stopped = [run for run in entry.runs(study) if study.was_stopped(run)]
    if stopped:
        names = (f"{run.data} {run.method} ({study[run]['seconds']:.0f} s)" for run in stopped)
        lines.append(
            f"Ended by the time limit, so that seconds are a lower bound: {', '.join(names)}."
        )
    if shown.claims:
        rows = [[claim.text, "yes" if claim.holds else "**no**"] for claim in shown.claims]
        lines.append(table(["claim", "here"], rows))
    if _differs(key, study):
        lines.append(f"Why figures differ: {_differs(key, study)}")
    return "\n\n".join(lines)


def _parameters(runs: Sequence[Run]) -> str:
    """What all runs of an entry were told, in one line."""
    fields = {
        "kernel": [run.kernel for run in runs],
        "oracle": [
            run.lmo if run.lmo in ("full", "lazy") else f"{run.lmo}, {run.sample_size} rows"
            for run in runs
        ],
        "stopping": [f"{run.stopping} {run.tol:g}" for run in runs],
        "C": [
            "each of those drawn" if run.C is not None else f"chosen for {MODELS[run.chosen_at]}"
            for run in runs
        ],
        "seeds": sorted({str(run.seed) for run in runs}),
    }
    return "; ".join(f"{name}: {' or '.join(dict.fromkeys(own))}" for name, own in fields.items())


def _heading(entry: Entry | Absent, key: tuple[str, str]) -> str:
    return f"{key[0].upper()}, {entry.title}"


def _anchor(title: str) -> str:
    """Where a heading of the page is found."""
    kept = (each for each in title.lower() if each.isalnum() or each in " -_")
    return "".join(kept).replace(" ", "-")
