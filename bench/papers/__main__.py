"""``python -m bench.papers``: the papers' tables and figures, printed values beside ours."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from bench.datasets import DEFAULT_DATA
from bench.papers import ball, gap, page, rules
from bench.papers.data import HOME, Library
from bench.papers.runs import Run, Study
from bench.run import DEFAULT_WORK

PAPERS = gap.ENTRIES | ball.ENTRIES | rules.ENTRIES


def main(argv: Sequence[str] | None = None) -> int:
    """Make the runs that are wanted and not there yet, and print or write what they show."""
    args = _parser().parse_args(argv)
    known = {
        (paper, key): PAPERS[paper].get(key)
        for paper, words in page.WORDS.items()
        if args.paper in (paper, "all")
        for key in words["entries"]
    }
    unknown = sorted(set(args.entries) - {key for _, key in known})
    if unknown:
        names = ", ".join(key for _, key in known)
        print(f"{args.paper} has no entry {', '.join(unknown)}; it has {names}", file=sys.stderr)
        return 2
    chosen = {key: entry for key, entry in known.items() if key[1] in (args.entries or key)}
    records = args.work / "papers" / ("quick.jsonl" if args.quick else "runs.jsonl")
    library = Library(args.data, args.work, quick=args.quick)
    study = Study(library, records, 1 if args.quick else args.repeat)
    runs = [run for entry in chosen.values() if entry is not None for run in entry.runs]
    try:
        make(study, runs)
        make(study, runs)  # the other seeds of those that took little time
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on from {records}", file=sys.stderr)
        return 130
    text = page.write(chosen, study, args.output / "figures")
    if args.paper == "all" and not args.entries:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "RESULTS.md").write_text(text)
        print(args.output / "RESULTS.md")
    else:
        print(text)
    return 0


def make(study: Study, runs: Sequence[Run]) -> None:
    """Make the runs that are not there, set by set, and say what each took."""
    wanted = dict.fromkeys(study.all_of(runs))
    missing = [run for run in wanted if not study.known(run)]
    missing.sort(key=lambda run: run.data)
    for run in tqdm(missing, file=sys.stderr, disable=not missing):
        seconds = study.make(run)["total_seconds"]
        tqdm.write(f"{seconds:8.1f} s  {run.data} {run.method} {run.oracle}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.papers", description=__doc__)
    add = parser.add_argument
    add("paper", choices=[*PAPERS, "all"])
    add("entries", nargs="*", help="tables and figures (default: all)")
    add("--quick", action="store_true", help="on thinned data, within ten minutes")
    add("--repeat", type=int, default=3, help="seeds of runs that take little time (default: 3)")
    add("--data", type=Path, default=DEFAULT_DATA, help="folder of the real sets")
    add("--work", type=Path, default=DEFAULT_WORK, help="folder of what is kept")
    add("--output", type=Path, default=HOME, help="folder of RESULTS.md and of figures/")
    return parser


if __name__ == "__main__":
    sys.exit(main())
