"""The data sets: where their text comes from, how it is converted, which C and gamma they take.

Each set is converted once into a folder of its own under a work directory; delete that folder to
have it made anew. ``python -m bench.datasets kdd-full`` writes the largest, synthetic one to any
place, as text or as HDF5. Imports nothing heavy; see `bench.process`.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from bench.process import OOC_FW, ROOT, ChildError, Measured, run_measured

DEFAULT_DATA = ROOT.parent / "shared" / "data"
PACKAGE_DATA = ROOT / "ooc_fw" / "data" / "samples"

Text: TypeAlias = Path | tuple[str, ...]
"""LIBSVM text: a file, or a command that writes it on standard output."""

Texts: TypeAlias = Callable[[Path, Path], tuple[Text, Text]]
"""From the data folder and an own folder to write to, the training and the test text."""


@dataclass(frozen=True)
class Dataset:
    """One set and the problem posed on it."""

    name: str
    texts: Texts
    C: float = 1.0
    gamma: float | None = None  # of the RBF kernel; None is "auto"
    convert: tuple[str, ...] = ()  # options for the training file; the test file follows it


@dataclass(frozen=True)
class Prepared:
    """A set ready for solvers: two HDF5 files and the numbers of the problem."""

    name: str
    train: Path
    test: Path
    C: float
    gamma: float
    n_rows: int
    n_features: int


def prepare(dataset: Dataset, data: Path, work: Path) -> Prepared:
    """Convert a set unless that has been done before; ChildError when the text is not there.

    `data` is the folder of the real sets, `work` that of converted files.
    """
    folder = work.resolve() / dataset.name
    train, test = folder / "train.h5", folder / "test.h5"
    if not test.exists():  # the one written last
        folder.mkdir(parents=True, exist_ok=True)
        train_text, test_text = dataset.texts(data.resolve(), folder)
        convert(train_text, train, *dataset.convert)
        convert(test_text, test, "--like", str(train))
    facts = json.loads(run_measured([*OOC_FW, "info", train, "--json"]).stdout)
    gamma = facts["gamma_auto"] if dataset.gamma is None else dataset.gamma
    sizes = facts["n_rows"], facts["n_features"]
    return Prepared(dataset.name, train, test, dataset.C, gamma, *sizes)


def convert(text: Text, output: Path, *options: str) -> Measured:
    """Run ``ooc-fw convert`` on a file, or on what a command writes; both paths absolute.

    ChildError when the conversion or the command failed; there is no output then.
    """
    if isinstance(text, Path):
        return run_measured([*OOC_FW, "convert", text, output, *options])
    with subprocess.Popen(text, stdout=subprocess.PIPE, cwd=ROOT) as writer:
        measured = run_measured([*OOC_FW, "convert", "-", output, *options], stdin=writer.stdout)
    if writer.returncode != 0:  # a text cut short looks like a short text
        output.unlink()
        raise ChildError(f"{' '.join(text)} ended with status {writer.returncode}")
    return measured


# -- where text comes from -----------------------------------------------------------------------


def files(train: str, test: str) -> Texts:
    """Two files of the data folder as they are."""
    return lambda data, _: (data / train, data / test)


def pair(stem: str) -> Texts:
    """The files of the data folder for training and test that share a stem."""
    return files(f"{stem}.xz", f"{stem}.t.xz")


def one_against_rest(stem: str, positive: str) -> Texts:
    """The same, with label 1 for the class `positive` and 0 for all others."""

    def write(data: Path, folder: Path) -> tuple[Path, Path]:
        parts = (_lines(data / f"{stem}{end}", positive) for end in (".xz", ".t.xz"))
        return _write(folder, "", *parts)

    return write


def split(name: str, test: float, positive: str | None = None) -> Texts:
    """One file of the data folder; a share, or an int of rows, drawn at random, is for the test."""

    def write(data: Path, folder: Path) -> tuple[Path, Path]:
        held_out = _draw_share(test)
        if isinstance(test, int):
            held_out = _draw_rows(test, sum(1 for _ in _lines(data / name)))
        return _write_split(_lines(data / name, positive), held_out, folder)

    return write


def first_rows(name: str, n: int, positive: str) -> Texts:
    """The first `n` lines of one file, for a class against the rest; a tenth of the rest tests."""

    def write(data: Path, folder: Path) -> tuple[Path, Path]:
        lines = _lines(data / name, positive)
        return _write(folder, "", islice(lines, n), islice(lines, 0, None, 10))

    return write


def generated(rows: Callable[[random.Random], Iterator[str]], test: float = 0.5) -> Texts:
    """Lines made by a function, a share of them for the test."""
    return lambda _, folder: _write_split(rows(random.Random(0)), _draw_share(test), folder)


def thinned(dataset: Dataset, every: int) -> Dataset:
    """The same set with one in `every` of its rows, for the test, too."""

    def texts(data: Path, folder: Path) -> tuple[Path, Path]:
        sources = (source for source in dataset.texts(data, folder) if isinstance(source, Path))
        return _write(folder, "thin-", *(islice(_lines(one), 0, None, every) for one in sources))

    return replace(dataset, name=f"{dataset.name}-1in{every}", texts=texts)


def kdd_full(seed: int = 0, n_rows: int | None = None) -> Texts:
    """The synthetic full KDD Cup 99 set, made on the fly by `bench.kdd_full`; the corrected set."""

    def texts(data: Path, _: Path) -> tuple[Text, Text]:
        writer = [sys.executable, "-m", "bench.kdd_full", str(data), "--seed", str(seed)]
        if n_rows is not None:
            writer += ["--rows", str(n_rows)]
        return tuple(writer), data / "kddcup99/kddcup99_corrected_binary.xz"

    return texts


def _lines(path: Path, positive: str | None = None) -> Iterator[str]:
    """Lines of a file; with label 1 for the class `positive`, if it is given, and 0 for others."""
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as text:
        for line in text:
            label, _, cells = line.partition(" ")
            yield line if positive is None else f"{int(label == positive)} {cells}"


def _draw_share(share: float) -> Iterator[bool]:
    rng = random.Random(0)
    while True:
        yield rng.random() < share


def _draw_rows(n_chosen: int, n_rows: int) -> Iterator[bool]:
    """Selection sampling (Knuth, The Art of Computer Programming, 3.4.2, algorithm S)."""
    rng = random.Random(0)
    for n_left in range(n_rows, 0, -1):
        chosen = rng.random() * n_left < n_chosen
        n_chosen -= chosen
        yield chosen


def _write(
    folder: Path, prefix: str, train: Iterable[str], test: Iterable[str]
) -> tuple[Path, Path]:
    """Write lines to train on, then those to test."""
    targets = folder / f"{prefix}train.txt", folder / f"{prefix}test.txt"
    for target, lines in zip(targets, (train, test), strict=True):
        with target.open("w") as out:
            out.writelines(lines)
    return targets


def _write_split(lines: Iterable[str], held_out: Iterable[bool], folder: Path) -> tuple[Path, Path]:
    train, test = folder / "train.txt", folder / "test.txt"
    with train.open("w") as train_out, test.open("w") as test_out:
        for line, is_test in zip(lines, held_out, strict=False):
            (test_out if is_test else train_out).write(line)
    return train, test


# -- synthetic sets ------------------------------------------------------------------------------

SYNTHETIC_ROWS = 20_000
FLIPPED = 0.02  # share of wrong labels, so that the support cannot vanish


def shell(rng: random.Random) -> Iterator[str]:
    """Dense: 10 normal columns, the label says whether the first 4 lie inside a ball."""
    for _ in range(SYNTHETIC_ROWS):
        x = [rng.gauss(0, 1) for _ in range(10)]
        inside = sum(value * value for value in x[:4]) < 3.36  # the median
        label = int(inside != (rng.random() < FLIPPED))
        yield f"{label} {' '.join(f'{j}:{value:.6g}' for j, value in enumerate(x, 1))}\n"


def words(rng: random.Random) -> Iterator[str]:
    """Sparse: 12 of 300 columns are 1, low ones more often, and one in three speaks of the class.

    Odd columns are the words of class 1, even ones those of class 0.
    """
    for _ in range(SYNTHETIC_ROWS):
        label = int(rng.random() < 0.3)
        cells: set[int] = set()
        while len(cells) < 12:
            j = 1 + int(300 * rng.random() ** 2)
            if rng.random() < 1 / 3:
                j = min(299, j - j % 2) + label
            cells.add(max(1, j))
        label = int(label != (rng.random() < FLIPPED))
        yield f"{label} {' '.join(f'{j}:1' for j in sorted(cells))}\n"


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


def mixed(n_rows: int, n_numbers: int, levels: Sequence[int], bias: float = 0) -> Texts:
    """CSV without a header: a label, numbers, and categories of so many levels; a quarter tests.

    The odds of label 1 jump at the sides of boxes in one to three columns, swing with a number, and
    depend on the level of each category, for high and low values of a number differently.
    """

    def rows(rng: random.Random) -> Iterator[str]:
        sides = [[rng.randrange(n_numbers) for _ in range(1 + k % 3)] for k in range(24)]
        boxes = [([(j, rng.gauss(0, 1)) for j in side], rng.gauss(0, 1)) for side in sides]
        effects = [[(rng.gauss(0, 0.8), rng.gauss(0, 0.5)) for _ in range(n)] for n in levels]
        for _ in range(n_rows):
            x = [rng.gauss(0, 1) for _ in range(n_numbers)]
            codes = [int(n * rng.random() ** 2) for n in levels]  # low levels more often
            odds = bias + math.sin(4 * x[0]) + x[-1]
            odds += sum(jump for box, jump in boxes if all(x[j] < side for j, side in box))
            for own, code in zip(effects, codes, strict=True):
                odds += own[code][0] + own[code][1] * (1 if x[0] > 0 else -1)
            label = int(rng.random() < 1 / (1 + math.exp(-odds)))
            cells = [f"{value:.5g}" for value in x] + [f"level{code}" for code in codes]
            yield f"{label},{','.join(cells)}\n"

    return generated(rows, 0.25)


# -- the list ------------------------------------------------------------------------------------

MADE = ("--no-header", "--label", "0", "--scale", "standard", "--dense")
ONE_HOT, ENCODED = ("--one-hot", "8,9,10,11,12"), ("--target-encode", "7,8")
KDD_SCALING = ("--log1p", "--scale", "minmax")  # the test file takes over the training range
MINMAX, MAXABS = ("--scale", "minmax"), ("--scale", "maxabs")
COVTYPE = "covtype_352k/covtype_352k.xz"  # noisy; class 2 against the rest
COVTYPE_GAMMA = 4.167  # 30 / (2 sigma^2)
KDD = "kddcup99/kddcup99_10pct_binary.xz", "kddcup99/kddcup99_corrected_binary.xz"

DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset("ijcnn1", pair("ijcnn1/ijcnn1"), C=10, gamma=1.5418),
        Dataset("w7a", pair("w8a/w7a"), C=10),
        Dataset("a9a", pair("a9a/a9a")),
        Dataset("kdd99", files(*KDD), C=10, convert=KDD_SCALING),
        Dataset("kdd-full", kdd_full(), C=10, convert=(*KDD_SCALING, "--dense")),
        Dataset("kdd-full-sparse", kdd_full(), C=10, convert=(*KDD_SCALING, "--sparse")),
        Dataset("covtype", split(COVTYPE, 39_098, "2"), 10, COVTYPE_GAMMA, MINMAX),
        Dataset("covtype-40k", first_rows(COVTYPE, 40_000, "2"), 10, COVTYPE_GAMMA, MINMAX),
        Dataset("skin", split("skin_nonskin/skin_nonskin.xz", 0.2), C=10, convert=MINMAX),
        Dataset("phishing", split("phishing/phishing.xz", 0.2), C=10),
        Dataset("reuters", files("reuters/reuters.trn.xz", "reuters/reuters.tst.xz"), C=10),
        Dataset("mnist8", one_against_rest("mnist/mnist", "8"), C=10, convert=MAXABS),
        # Several classes, one-versus-one.
        Dataset("usps", pair("usps/usps"), C=10, gamma=0.0078125),
        Dataset("pendigits", pair("pendigits/pendigits"), C=10, gamma=2.0, convert=MINMAX),
        Dataset("letter", pair("letter/letter.scale"), C=10, gamma=2.0),
        Dataset("shuttle", pair("shuttle/shuttle.scale"), C=1000, gamma=16.0),
        Dataset("mnist", pair("mnist/mnist"), C=10, gamma=0.025, convert=MAXABS),
        Dataset("a1a", lambda *_: (PACKAGE_DATA / "a1a.xz", PACKAGE_DATA / "a1a.t.xz")),
        Dataset("shell", generated(shell), C=10),
        Dataset("words", generated(words)),
        Dataset("topics", generated(topics), C=10),
        # Tables: numbers; rare calls of class 1, by categories; categories of many levels.
        Dataset("prices", mixed(60_000, 8, ()), 1, None, MADE),
        Dataset("calls", mixed(60_000, 7, (12, 12, 12, 4, 3), -2), 1, None, (*MADE, *ONE_HOT)),
        Dataset("levels", mixed(1_333_333, 6, (300, 300)), 1, None, (*MADE, *ENCODED)),
    )
}

REAL_SETS = ("ijcnn1", "w7a", "a9a", "kdd99")
"""What is run by default."""
PORTABLE_SETS = ("a1a", "shell", "words")
"""What is run by default where the data folder is absent: these need nothing beyond the project."""


def default_sets(data: Path) -> tuple[str, ...]:
    """Names of the sets to run when none are named."""
    return REAL_SETS if data.is_dir() else PORTABLE_SETS


# -- the command ---------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Make what the arguments ask for."""
    args = _parser().parse_args(argv)
    text = kdd_full(args.seed, args.rows)(args.data.resolve(), Path())[0]
    assert isinstance(text, tuple)
    if args.output.suffix not in (".h5", ".hdf5"):
        with args.output.open("wb") as out:
            status = subprocess.run(text, cwd=ROOT, stdout=out, check=False).returncode
        if status != 0:
            args.output.unlink()
        return status
    try:
        measured = convert(text, args.output.absolute(), *KDD_SCALING, "--dense")
    except ChildError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{args.output}: {measured.seconds:.1f} s, peak {measured.peak_rss_bytes / 1e6:.0f} MB")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.datasets", description="Make a data set that is not kept as a file."
    )
    sets = parser.add_subparsers(metavar="SET", required=True)
    kdd = sets.add_parser(
        "kdd-full",
        help="the full KDD Cup 99 set, synthetic: 4,898,431 rows, 127 features",
        description="Write the synthetic stand-in for the full KDD Cup 99 set: the seven classes "
        "that the 10 % set thinned out are drawn from it anew, as often as the full set has them, "
        "with continuous values moved a little; the other 4,645 rows are kept. HDF5 files hold "
        "log(1 + x) scaled to [0, 1], and rows are shuffled. The same seed gives the same text.",
    )
    help_output = "HDF5 where the name ends in .h5 (dense: 2.5 GB), else LIBSVM text (0.5 GB)"
    kdd.add_argument("--output", "-o", type=Path, required=True, metavar="FILE", help=help_output)
    kdd.add_argument("--seed", type=int, default=0, help="of every random draw (default: 0)")
    kdd.add_argument("--rows", type=int, metavar="N", help="only the first N, a fair sample")
    kdd.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder of the real sets")
    return parser


if __name__ == "__main__":
    sys.exit(main())
