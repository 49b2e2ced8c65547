"""``python -m bench.papers``: the papers' tables and figures, printed values beside ours."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from bench.datasets import DEFAULT_DATA
from bench.papers import meb, page, partan, randomization, rules, swap
from bench.papers.data import Library
from bench.papers.entries import Absent, Entry
from bench.papers.runs import Run, Study
from bench.run import DEFAULT_WORK

PAPERS = {
    "partan": partan,
    "randomization": randomization,
    "swap": swap,
    "meb": meb,
    "rules": rules,
}
HOME = Path(__file__).parent


def main(argv: Sequence[str] | None = None) -> int:
    """Make the runs that are wanted and not there yet, and print or write what they show."""
    args = _parser().parse_args(argv)
    names = [args.paper] if args.paper != "all" else list(PAPERS)
    chosen = {
        (name, key): entry
        for name in names
        for key, entry in PAPERS[name].ENTRIES.items()
        if not args.entries or key in args.entries
    }
    unknown = set(args.entries) - {key for _, key in chosen}
    if unknown or not chosen:
        known = ", ".join(key for name in names for key in PAPERS[name].ENTRIES)
        print(
            f"{args.paper} has no entry {', '.join(sorted(unknown))}; it has {known}",
            file=sys.stderr,
        )
        return 2
    library = Library(args.data, args.work, quick=args.quick)
    records = args.work / "papers" / ("quick.jsonl" if args.quick else "runs.jsonl")
    study = Study(library, records, 1 if args.quick else args.repeat)
    if args.made:
        chosen = {key: _as_made(entry, study) for key, entry in chosen.items()}
    entries = [entry for entry in chosen.values() if isinstance(entry, Entry)]

    def wanted() -> list[Run]:
        return list(dict.fromkeys(run for entry in entries for run in entry.runs(study)))

    try:
        make(study, wanted())
        make(study, wanted())  # the other seeds of those that took little time
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on from {records}", file=sys.stderr)
        return 130
    titles = {name: PAPERS[name].TITLE for name in names}
    text = page.write(chosen, titles, study, args.output, page.head(study))
    if args.paper == "all" and not args.entries:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "RESULTS.md").write_text(text)
        print(args.output / "RESULTS.md")
    else:
        print(text)
    return 0


def _as_made(entry: Entry | Absent, study: Study) -> Entry | Absent:
    """The entry, if all its runs are there."""
    if isinstance(entry, Absent) or all(study.known(run) for run in entry.runs(study)):
        return entry
    return Absent(entry.title, "its runs are not made yet")


def make(study: Study, runs: Sequence[Run]) -> None:
    """Make the runs that are not there, set by set, and say what each took."""
    missing = [run for run in runs if not study.known(run)]
    if not missing:
        return
    order = {name: k for k, name in enumerate(dict.fromkeys(run.data for run in missing))}
    missing.sort(key=lambda run: order[run.data])
    print(f"{len(runs) - len(missing)} runs are there, {len(missing)} to make", file=sys.stderr)
    for run in tqdm(missing, file=sys.stderr):
        began = time.perf_counter()
        study.make(run)
        tqdm.write(f"{time.perf_counter() - began:8.1f} s  {short(run)}", file=sys.stderr)


def short(run: Run) -> str:
    """A run in a few words; runs that differ by their seeds are alike."""
    where = run.lmo if run.lmo in ("full", "lazy") else f"{run.lmo} {run.sample_size}"
    words = [run.data, run.method, where, f"{run.stopping} {run.tol:g}"]
    words += [run.kernel] * (run.kernel != "rbf")
    words += [f"C {run.C:g}"] if run.C is not None else []
    words += ["path"] * run.path + ["watched"] * run.watched
    return " ".join(words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.papers", description=__doc__)
    parser.add_argument("paper", choices=[*PAPERS, "all"])
    parser.add_argument("entries", nargs="*", help="tables and figures (default: all)")
    parser.add_argument("--quick", action="store_true", help="on thinned data, within ten minutes")
    parser.add_argument("--made", action="store_true", help="make no run, show what is there")
    parser.add_argument(
        "--repeat", type=int, default=3, help="seeds of runs that take little time (default: 3)"
    )
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder of the real sets")
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK, help="folder of what is kept")
    parser.add_argument(
        "--output", type=Path, default=HOME, help="folder of RESULTS.md and of figures/"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
