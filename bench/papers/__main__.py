"""``python -m bench.papers``: the papers' tables, printed values beside ours.

What is made takes its place on the page ``RESULTS.md``; the other entries there stay as they are.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from bench.datasets import DEFAULT_DATA
from bench.environment import environment
from bench.papers import ball, gap
from bench.papers.data import HOME, read_toml
from bench.papers.study import Entry, Study
from bench.published import table
from bench.run import DEFAULT_WORK
from ooc_fw.solver.state import Status

PAPERS = gap.ENTRIES | ball.ENTRIES
WORDS = read_toml("entries.toml")
"""By paper: its title, and the words of each entry."""


def main(argv: Sequence[str] | None = None) -> int:
    """Make the runs that are wanted and not there yet, and write what they show."""
    args = _parser().parse_args(argv)
    papers = PAPERS if args.paper == "all" else {args.paper: PAPERS[args.paper]}
    chosen = {
        (paper, key): entry
        for paper, own in papers.items()
        for key, entry in own.items()
        if key in args.entries or not args.entries
    }
    if not chosen:
        print("there are", ", ".join(key for own in papers.values() for key in own))
        return 2
    study = Study(args.data, args.work, args.repeat, args.output / "figures")
    try:
        runs = study.all_of(run for entry in chosen.values() for run in entry.runs)
        for run in tqdm(sorted(runs, key=lambda run: run.data)):  # so that a set is read once
            study.make(run)
    except FileNotFoundError as error:
        print(f"{error.filename} is not there; name its folder with --data", file=sys.stderr)
        return 1
    page = args.output / "RESULTS.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    sections = {heading(*key): section(key, entry, study) for key, entry in chosen.items()}
    page.write_text(written(page.read_text() if page.exists() else "", sections, study))
    print(page)
    return 0


def heading(paper: str, key: str) -> str:
    """Heading of an entry on the page."""
    return f"{paper.upper()}, {WORDS[paper]['entries'][key]['title']}"


def section(key: tuple[str, str], entry: Entry, study: Study) -> str:
    """What stands below the heading of an entry whose runs are there."""
    words: dict[str, str] = WORDS[key[0]]["entries"][key[1]]
    made = study.all_of(entry.runs)
    told = {
        "oracle": (run.oracle for run in made),
        "stopping": (f"{run.stopping} {run.tol:g}" for run in made),
    }
    parts = "; ".join(f"{name}: {' or '.join(dict.fromkeys(own))}" for name, own in told.items())
    text, claims = entry.show(study)
    paragraphs = [f"`python -m bench.papers {' '.join(key)}`", parts, text, words.get("text", "")]
    if late := [run for run in made if study[run]["status"] == Status.TIME_LIMIT]:
        ended = ", ".join(f"{r.data} {r.method} ({study[r]['seconds']:.0f} s)" for r in late)
        paragraphs.append(f"Ended by the time limit, so that seconds are a lower bound: {ended}.")
    if claims:
        cells = [[claim, "yes" if holds else "**no**"] for claim, holds in claims.items()]
        paragraphs.append(table(["claim", "here"], cells))
    if "differs" in words:
        paragraphs.append(f"Why figures differ: {' '.join(words['differs'].split())}")
    return "\n\n".join(filter(None, map(str.strip, paragraphs)))


def written(page: str, sections: dict[str, str], study: Study) -> str:
    """The page with some sections made anew."""
    found = re.findall(r"^### ([^\n]+)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    sections = {title: text.strip() for title, text in found} | sections
    summary, parts = [], []
    for paper, words in WORDS.items():
        parts.append(f"## {words['title']}")
        for title in (heading(paper, key) for key in words["entries"]):
            if title in sections:
                text = sections[title]
                parts += [f"### {title}", text]
                anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
                held = [text.count(f"| {word} |") for word in ("yes", "**no**")]
                told = f"{held[0]} of {sum(held)}" if sum(held) else ""
                summary.append([f"[{title}](#{anchor})", told])
    own = environment()
    machine = f"Machine: {own['cpu']}, {own['cpus']} CPUs, one of which was used."
    head = (HOME / "head.md").read_text().format(machine=machine).strip()
    first = [head, "## Summary", table(["table or figure", "claims that hold"], summary)]
    return "\n\n".join([*first, *parts]) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.papers", description=__doc__)
    add = parser.add_argument
    add("paper", choices=[*PAPERS, "all"])
    add("entries", nargs="*", help="of it, such as table2 (default: all)")
    add("--repeat", type=int, default=1, help="seeds of each run that draws samples (default: 1)")
    add("--data", type=Path, default=DEFAULT_DATA, help="folder of the real sets")
    add("--work", type=Path, default=DEFAULT_WORK, help="folder of what is kept")
    add("--output", type=Path, default=HOME, help="folder of RESULTS.md and of figures/")
    return parser


if __name__ == "__main__":
    sys.exit(main())
