"""The data sets: where their rows come from, how they are converted, which C and gamma they take.

Each set is converted or made once, in a folder of its own under a work directory; delete that
folder to have it made anew. ``python -m bench.datasets NAME -o FILE`` writes a set to any place.
Imports nothing heavy; see `bench.process`.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from bench.process import OOC_FW, ROOT, ChildError, run_measured

DEFAULT_DATA = ROOT.parent / "shared" / "data"
A1A = ROOT / "ooc_fw" / "data" / "samples" / "a1a"

Texts: TypeAlias = Callable[[Path, Path], tuple[Path, Path]]
"""From the data folder and an own folder to write to, the training and the test text."""


@dataclass(frozen=True)
class Made:
    """Rows that `bench.made` makes."""

    kind: str
    n_rows: int
    base: str | None = None  # the set that they are drawn from


@dataclass(frozen=True)
class Dataset:
    """One set and the problem posed on it."""

    name: str
    source: Texts | Made
    C: float = 1.0
    gamma: float | None = None  # of the RBF kernel; None is "auto"
    convert: tuple[str, ...] = ()  # options for the training file; the test file follows it
    title: str = ""  # in tables, if the name does not do


@dataclass(frozen=True)
class Prepared:
    """A set ready for solvers: two HDF5 files and the numbers of the problem."""

    set: Dataset
    train: Path
    test: Path
    gamma: float | None  # None if `ooc-fw train` is to find it
    n_rows: int
    n_features: int
    n_classes: int
    rows_bytes: int  # float32 values, or values with their columns


def prepare(dataset: Dataset, data: Path, work: Path) -> Prepared:
    """Make the files of a set unless they are there; ChildError if they cannot be made.

    `data` is the folder of the real sets, `work` that of converted files.
    """
    folder = work.resolve() / dataset.name
    train, test = folder / "train.h5", folder / "test.h5"
    if not test.exists():  # the one written last
        make(dataset, train, test, data, work)
    facts = json.loads(run_measured([*OOC_FW, "info", train, "--json"]).stdout)
    gamma = facts["gamma_auto"] if dataset.gamma is None else dataset.gamma
    n_rows, n_features = facts["n_rows"], facts["n_features"]
    dense = 4 * n_rows * n_features
    return Prepared(
        set=dataset,
        train=train,
        test=test,
        gamma=gamma,
        n_rows=n_rows,
        n_features=n_features,
        n_classes=len(facts["classes"]),
        rows_bytes=dense if "dense" in facts["storage"] else train.stat().st_size,
    )


def make(dataset: Dataset, train: Path, test: Path, data: Path, work: Path) -> None:
    """Write the two files of a set, whose paths are absolute."""
    train.parent.mkdir(parents=True, exist_ok=True)
    source = dataset.source
    if isinstance(source, Made):
        base = prepare(DATASETS[source.base], data, work) if source.base else None
        files = (base.train, base.test) if base else ()
        command = [sys.executable, "-m", "bench.made", source.kind, str(source.n_rows)]
        run_measured([*command, train, test, *files])
        return
    try:
        train_text, test_text = source(data.resolve(), train.parent)
    except FileNotFoundError as error:
        raise ChildError(f"{error.filename} does not exist; name the folder with --data") from None
    run_measured([*OOC_FW, "convert", train_text, train, *dataset.convert])
    run_measured([*OOC_FW, "convert", test_text, test, "--like", train])


def files(train: str, test: str) -> Texts:
    """Two files of the data folder as they are."""
    return lambda data, _: (data / train, data / test)


def pair(stem: str) -> Texts:
    """The files of the data folder for training and test that share a stem."""
    return files(f"{stem}.xz", f"{stem}.t.xz")


def split(name: str, share: float, positive: str | None = None) -> Texts:
    """One file of the data folder; a share of the rows, drawn at random, is for the test."""
    return lambda data, folder: _split(_lines(data / name, positive), share, folder)


def generated(rows: Callable[[random.Random], Iterator[str]], share: float) -> Texts:
    """Lines made by a function; a share of them is for the test."""
    return lambda _, folder: _split(rows(random.Random(0)), share, folder)


def thinned(dataset: Dataset, every: int) -> Dataset:
    """The same set with one in `every` of its rows, for the test, too."""
    source, name = dataset.source, f"{dataset.name}-1in{every}"
    if isinstance(source, Made):
        return replace(dataset, name=name, source=replace(source, n_rows=source.n_rows // every))

    def texts(data: Path, folder: Path) -> tuple[Path, Path]:
        parts = [[*islice(_lines(text), 0, None, every)] for text in source(data, folder)]
        return _write(folder, *parts)

    return replace(dataset, name=name, source=texts)


def _lines(path: Path, positive: str | None = None) -> Iterator[str]:
    """Lines of a file; with label 1 for the class `positive`, if it is given, and 0 for others."""
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as text:
        for line in text:
            label, _, cells = line.partition(" ")
            yield line if positive is None else f"{int(label == positive)} {cells}"


def _write(folder: Path, train: Iterable[str], test: Iterable[str]) -> tuple[Path, Path]:
    """Write lines to train on, then those to test."""
    targets = folder / "train.txt", folder / "test.txt"
    for target, lines in zip(targets, (train, test), strict=True):
        with target.open("w") as out:
            out.writelines(lines)
    return targets


def _split(lines: Iterable[str], share: float, folder: Path) -> tuple[Path, Path]:
    rng = random.Random(0)
    parts: tuple[list[str], list[str]] = [], []
    for line in lines:
        parts[rng.random() < share].append(line)
    return _write(folder, *parts)


def topics(rng: random.Random) -> Iterator[str]:
    """Sparse: 100 classes, 160 of 50,000 columns a row, as of texts.

    A class has 300 columns of its own, from which a row takes a quarter of its values; the others
    come from all columns, low ones more often. Rows have length 1.
    """
    own = [[rng.randrange(50_000) for _ in range(300)] for _ in range(100)]
    for _ in range(12_000):
        label = rng.randrange(100)
        cells: dict[int, float] = {}
        while len(cells) < 160:
            topic = rng.random() < 0.25
            j = rng.choice(own[label]) if topic else int(50_000 * rng.random() ** 3)
            cells[j] = 0.5 + rng.expovariate(1)
        length = sum(value * value for value in cells.values()) ** 0.5
        yield f"{label} {' '.join(f'{j + 1}:{cells[j] / length:.5g}' for j in sorted(cells))}\n"


def calls(rng: random.Random) -> Iterator[str]:
    """CSV without a header: a label, seven numbers and five categories.

    The odds of label 1, which is rare, jump at the sides of boxes in one to three columns, swing
    with a number, and depend on each category, for high and low values of a number differently.
    """
    n_numbers, levels = 7, (12, 12, 12, 4, 3)
    sides = [[rng.randrange(n_numbers) for _ in range(1 + k % 3)] for k in range(24)]
    boxes = [([(j, rng.gauss(0, 1)) for j in side], rng.gauss(0, 1)) for side in sides]
    effects = [[(rng.gauss(0, 0.8), rng.gauss(0, 0.5)) for _ in range(n)] for n in levels]
    for _ in range(60_000):
        x = [rng.gauss(0, 1) for _ in range(n_numbers)]
        codes = [int(n * rng.random() ** 2) for n in levels]  # low levels more often
        odds = math.sin(4 * x[0]) + x[-1] - 2
        odds += sum(jump for box, jump in boxes if all(x[j] < side for j, side in box))
        for own, code in zip(effects, codes, strict=True):
            odds += own[code][0] + own[code][1] * (1 if x[0] > 0 else -1)
        label = int(rng.random() < 1 / (1 + math.exp(-odds)))
        cells = [f"{value:.5g}" for value in x] + [f"level{code}" for code in codes]
        yield f"{label},{','.join(cells)}\n"


CALLS = tuple("--no-header --label 0 --scale standard --dense --one-hot 8,9,10,11,12".split())
MINMAX = ("--scale", "minmax")
COVTYPE = "covtype_352k/covtype_352k.xz"  # noisy; class 2 against the rest
COVTYPE_GAMMA = 4.167  # 30 / (2 sigma^2)
KDD = files("kddcup99/kddcup99_10pct_binary.xz", "kddcup99/kddcup99_corrected_binary.xz")

DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset("ijcnn1", pair("ijcnn1/ijcnn1"), 10, 1.5418),
        Dataset("w7a", pair("w8a/w7a"), 10),
        Dataset("a9a", pair("a9a/a9a")),
        Dataset("kdd99", KDD, 10, None, ("--log1p", *MINMAX), "KDD99 10 %"),
        Dataset("covtype", split(COVTYPE, 1 / 9, "2"), 10, COVTYPE_GAMMA, MINMAX),
        Dataset("skin", split("skin_nonskin/skin_nonskin.xz", 0.2), 10, None, MINMAX),
        # Several classes.
        Dataset("usps", pair("usps/usps"), 10, 0.0078125),
        Dataset("pendigits", pair("pendigits/pendigits"), 10, 2.0, MINMAX),
        Dataset("letter", pair("letter/letter.scale"), 10, 2.0),
        Dataset("shuttle", pair("shuttle/shuttle.scale"), 1000, 16.0),
        Dataset("mnist", pair("mnist/mnist"), 10, 0.025, ("--scale", "maxabs")),
        # Without the data folder.
        Dataset("a1a", pair(str(A1A))),
        Dataset("topics", generated(topics, 0.5), 10, title="100 topics, sparse"),
        Dataset("calls", generated(calls, 0.25), 1, None, CALLS),
        Dataset("one-hot", Made("one-hot", 20_000_000), title="one-hot categories, sparse"),
        *(
            Dataset(f"{kind}-1e{e}", Made(kind, 10**e), 10, 4.0, title=f"{kind} rows")
            for kind in ("clustered", "noisy")
            for e in range(4, 9)
        ),
        # Drawn from a set of the data folder, as many as the full set has.
        Dataset(
            "connections", Made("connections", 4_898_431, "kdd99"), 10, title="KDD99 with noise"
        ),
        Dataset(
            "digits-1e6", Made("digits", 1_000_000, "mnist"), 10, 0.0215, title="deformed digits"
        ),
    )
}

# The gamma that suits an exact model of all rows.
DATASETS["covtype-narrow"] = replace(
    DATASETS["covtype"], name="covtype-narrow", gamma=32.0, title="covtype, class 2 or not"
)
DATASETS["covtype-40k"] = replace(
    thinned(DATASETS["covtype"], 8), name="covtype-40k", title="covtype, one row in 8"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the set that the arguments ask for, and its test rows beside it."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.datasets", description="Write a set as HDF5, and its test rows."
    )
    add = parser.add_argument
    add("name", choices=DATASETS, metavar="NAME", help=f"of {', '.join(DATASETS)}")
    add("--output", "-o", type=Path, required=True, metavar="FILE", help="test rows: FILE-test")
    add("--data", type=Path, default=DEFAULT_DATA, help="folder of the real sets")
    add("--work", type=Path, help="folder of sets that others are drawn from (default: FILE's)")
    args = parser.parse_args(argv)
    train: Path = args.output.absolute()
    test = train.with_stem(f"{train.stem}-test")
    try:
        make(DATASETS[args.name], train, test, args.data, args.work or train.parent)
    except ChildError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"wrote {train} and {test}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
