"""The data sets: where their text comes from, how it is converted, which C and gamma they take.

Each set is converted once, by ``ooc-fw convert``, into a folder of its own under a work directory;
delete that folder to have it made anew. To add a set, add an entry to `DATASETS`.

Knows nothing of solvers. Imports nothing heavy; see `bench.process`.
"""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from bench.process import OOC_FW, ROOT, run_measured

DEFAULT_DATA = ROOT.parent / "shared" / "data"
PACKAGE_DATA = ROOT / "ooc_fw" / "data"

Texts: TypeAlias = Callable[[Path, Path], tuple[Path, Path]]
"""From the data folder and an own folder to write to, the training and the test file."""


@dataclass(frozen=True)
class Dataset:
    """One set and the problem posed on it.

    Parameters
    ----------
    name : str
        What commands call it.
    texts : Texts
        Gives its LIBSVM text.
    C : float
        Penalty.
    gamma : float or None
        Of the RBF kernel; None is "auto".
    convert : tuple of str
        Options of ``ooc-fw convert`` for the training file; the test file follows it.
    """

    name: str
    texts: Texts
    C: float = 1.0
    gamma: float | None = None
    convert: tuple[str, ...] = ()


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
    """Convert a set unless that has been done before.

    Parameters
    ----------
    dataset : Dataset
        What to convert.
    data : Path
        Folder of the real sets.
    work : Path
        Folder for converted files.

    Raises
    ------
    bench.process.ChildError
        The conversion failed, for instance because the text is not there.
    """
    folder = work.resolve() / dataset.name
    train, test = folder / "train.h5", folder / "test.h5"
    if not test.exists():  # the one written last
        folder.mkdir(parents=True, exist_ok=True)
        train_text, test_text = dataset.texts(data.resolve(), folder)
        run_measured([*OOC_FW, "convert", train_text, train, *dataset.convert])
        run_measured([*OOC_FW, "convert", test_text, test, "--like", train])
    facts = json.loads(run_measured([*OOC_FW, "info", train, "--json"]).stdout)
    gamma = facts["gamma_auto"] if dataset.gamma is None else dataset.gamma
    sizes = facts["n_rows"], facts["n_features"]
    return Prepared(dataset.name, train, test, dataset.C, gamma, *sizes)


# -- where text comes from -----------------------------------------------------------------------


def files(train: str, test: str) -> Texts:
    """Two files of the data folder as they are."""
    return lambda data, _: (data / train, data / test)


def packaged(train: str, test: str) -> Texts:
    """Two files that the package carries."""
    return lambda *_: (PACKAGE_DATA / train, PACKAGE_DATA / test)


def one_against_rest(train: str, test: str, positive: str) -> Texts:
    """Two files of the data folder, with label 1 for the class `positive` and 0 for all others."""

    def write(data: Path, folder: Path) -> tuple[Path, Path]:
        targets = folder / "train.txt", folder / "test.txt"
        for source, target in zip((train, test), targets, strict=True):
            with target.open("w") as out:
                out.writelines(_relabel(_lines(data / source), positive))
        return targets

    return write


def split(name: str, test_share: float, positive: str | None = None) -> Texts:
    """One file of the data folder, with a random share of its rows held out for the test."""

    def write(data: Path, folder: Path) -> tuple[Path, Path]:
        lines = _lines(data / name)
        if positive is not None:
            lines = _relabel(lines, positive)
        return _write_split(lines, test_share, folder)

    return write


def generated(rows: Callable[[random.Random], Iterator[str]]) -> Texts:
    """Lines made by a function, half of them for the test."""
    return lambda _, folder: _write_split(rows(random.Random(0)), 0.5, folder)


def _lines(path: Path) -> Iterator[str]:
    with lzma.open(path, "rt") as text:
        yield from text


def _relabel(lines: Iterable[str], positive: str) -> Iterator[str]:
    for line in lines:
        label, _, cells = line.partition(" ")
        yield f"{int(label == positive)} {cells}"


def _write_split(lines: Iterable[str], test_share: float, folder: Path) -> tuple[Path, Path]:
    train, test = folder / "train.txt", folder / "test.txt"
    rng = random.Random(0)
    with train.open("w") as train_out, test.open("w") as test_out:
        for line in lines:
            (test_out if rng.random() < test_share else train_out).write(line)
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


# -- the list ------------------------------------------------------------------------------------

DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset("ijcnn1", files("ijcnn1/ijcnn1.xz", "ijcnn1/ijcnn1.t.xz"), C=10, gamma=1.5418),
        Dataset("w7a", files("w8a/w7a.xz", "w8a/w7a.t.xz"), C=10),
        Dataset("a9a", files("a9a/a9a.xz", "a9a/a9a.t.xz"), C=1),
        Dataset("a8a", files("a9a/a8a.xz", "a9a/a8a.t.xz"), C=1),
        Dataset(
            "kdd99",
            files(
                "kddcup99/kddcup99_10pct_binary.xz",
                "kddcup99/kddcup99_corrected_binary.xz",
            ),
            C=10,
            convert=("--log1p", "--scale", "minmax"),
        ),
        Dataset(
            "covtype",  # class 2 against the rest; noisy
            split("covtype_352k/covtype_352k.xz", test_share=0.114, positive="2"),
            C=10,
            gamma=4.166,  # 30 / (2 sigma^2)
            convert=("--scale", "minmax"),
        ),
        Dataset(
            "skin",
            split("skin_nonskin/skin_nonskin.xz", test_share=0.2),
            C=10,
            convert=("--scale", "minmax"),
        ),
        Dataset("phishing", split("phishing/phishing.xz", test_share=0.2), C=10),
        Dataset("reuters", files("reuters/reuters.trn.xz", "reuters/reuters.tst.xz"), C=10),
        Dataset(
            "mnist8",
            one_against_rest("mnist/mnist.xz", "mnist/mnist.t.xz", positive="8"),
            C=10,
            convert=("--scale", "maxabs"),
        ),
        Dataset("a1a", packaged("a1a.xz", "a1a.t.xz"), C=1),
        Dataset("shell", generated(shell), C=10),
        Dataset("words", generated(words), C=1),
    )
}

REAL_SETS = ("ijcnn1", "w7a", "a9a", "kdd99")
"""What is run by default."""
PORTABLE_SETS = ("a1a", "shell", "words")
"""What is run by default where the data folder is absent: these need nothing beyond the project."""


def default_sets(data: Path) -> tuple[str, ...]:
    """Names of the sets to run when none are named."""
    return REAL_SETS if data.is_dir() else PORTABLE_SETS
