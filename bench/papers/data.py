"""The data sets of the papers, in RAM, by the papers' names.

What is not at hand is replaced, and `NOTES` says by what; nothing else is made up. Parts of a set
are nested: a smaller one is the beginning of a larger one, in one random order.
"""

from __future__ import annotations

import csv
import gzip
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from bench.datasets import DATASETS, convert, prepare
from bench.storage import read_labelled

Labels = npt.NDArray[np.float64]

_OWN = tomllib.loads(Path(__file__).with_name("sets.toml").read_text())

NOTES: dict[str, str] = {
    name: f"a random part of {whole} of the same size; the rest of {whole} tests"
    for whole, parts in _OWN["parts"].items()
    for name in parts
} | _OWN["notes"]
"""Sets that are not files as the papers had them, and what they are here."""

SETS: dict[str, dict[str, Any]] = _OWN["sets"]
"""Sizes of each set, sigma^2, and the C that validation chose, by `Run.chosen_at`."""

TESTED = {"w8a": "w8a-part"}
"""Sets without a test file, and those whose accuracies are quoted for them."""

KINDS = {name: int(kind) for kind, names in _OWN["kinds"].items() for name in names}
"""Kinds of traffic in the KDD Cup: normal, denial of service, probe, remote to local, to root."""

LARGEST_QUICK = 800, 600
"""Rows of a thinned set, to train on and to test."""


@dataclass(frozen=True)
class Data:
    """A set: rows and labels to train on, and to test."""

    X: Any
    y: Labels
    X_test: Any
    y_test: Labels

    def thinned(self) -> Data:
        """Random rows, at most `LARGEST_QUICK` of them, of every class at least a few."""
        train, test = LARGEST_QUICK
        rng = np.random.default_rng(0)
        some, others = _some(self.y, train, rng), _some(self.y_test, test, rng)
        return Data(self.X[some], self.y[some], self.X_test[others], self.y_test[others])


def _some(labels: Labels, most: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """At most about `most` rows, each class in its share, but 20 rows of each at least."""
    if len(labels) <= most:
        return np.arange(len(labels))
    parts = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        wanted = max(20, round(most * len(rows) / len(labels)))
        parts.append(rng.permutation(rows)[:wanted])
    return np.sort(np.concatenate(parts))


class Library:
    """Loads sets by name; the one used last is kept.

    Parameters
    ----------
    folder : Path
        Folder of the real sets.
    work : Path
        Where converted files are kept.
    quick : bool
        Whether sets are thinned.
    """

    def __init__(self, folder: Path, work: Path, *, quick: bool = False) -> None:
        self.folder, self.work, self.quick = folder.resolve(), work.resolve(), quick
        self._last: tuple[str, Data] | None = None

    def get(self, name: str) -> Data:
        """A set by name; FileNotFoundError where its file is not there."""
        if self._last is None or self._last[0] != name:
            self._last = None  # frees its memory
            data = LOADERS[name](self)
            self._last = name, data.thinned() if self.quick else data
        return self._last[1]

    def text(self, name: str) -> tuple[Any, Labels]:
        """Rows and labels of one LIBSVM text, as CSR or dense as the converter sees fit."""
        path = self.folder / name
        if not path.exists():
            raise FileNotFoundError(f"{path} is not there; name the folder of the sets with --data")
        target = self.work / "papers" / (name.replace("/", "-").removesuffix(".xz") + ".h5")
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            convert(path, target, "--no-shuffle")
        return read_labelled(target, np.float32)

    def pair(self, train: str, test: str) -> Data:
        """Two files, of which the second gets the columns of the first."""
        (X, y), (T, t) = self.text(train), self.text(test)
        T = scipy.sparse.csr_matrix(T)
        T.resize(len(t), X.shape[1])
        return Data(X, y, T if scipy.sparse.issparse(X) else T.toarray(), t)


# -- where sets come from ------------------------------------------------------------------------


def _part(name: str, n_rows: int) -> Callable[[Library], Data]:
    """The first rows of a set, in one random order, to train on, and the others to test."""

    def load(library: Library) -> Data:
        X, y = library.text(name)
        order = np.random.default_rng(0).permutation(len(y))
        train, test = order[:n_rows], order[n_rows:]
        return Data(X[train], y[train], X[test], y[test])

    return load


def _files(train: str, test: str) -> Callable[[Library], Data]:
    return lambda library: library.pair(train, test)


def _registered(name: str) -> Callable[[Library], Data]:
    """A set of `bench.datasets`, with the scaling that it has there."""

    def load(library: Library) -> Data:
        own = prepare(DATASETS[name], library.folder, library.work)
        (X, y), (T, t) = read_labelled(own.train, np.float32), read_labelled(own.test, np.float32)
        return Data(X, y, T, t)

    return load


def _kdd_full(library: Library) -> Data:
    """The synthetic set; thinned, the 10 % set that it is drawn from does as well."""
    return _registered("kdd99" if library.quick else "kdd-full")(library)


def _usps_ext(library: Library) -> Data:
    both = library.pair("usps/usps.xz", "usps/usps.t.xz")
    parts: list[Any] = []
    for rows, labels in ((both.X, both.y), (both.X_test, both.y_test)):
        digits = np.flatnonzero(labels <= 2)  # the digits 0 and 1
        if library.quick:
            digits = digits[:: max(1, len(digits) // 40)]
        images = (rows[digits].reshape(-1, 16, 16) + 1) / 2  # the background is 0
        frames = np.zeros((len(images), 121, 26, 26), dtype=np.float32)
        for place in range(121):
            top, left = divmod(place, 11)
            frames[:, place, top : top + 16, left : left + 16] = images
        parts += [frames.reshape(-1, 676), np.repeat(labels[digits], 121)]
    return Data(*parts)


def _dense(rows: Any) -> npt.NDArray[np.float32]:
    return np.asarray(rows.toarray() if scipy.sparse.issparse(rows) else rows)


def _protein(library: Library) -> Data:
    X, y = library.text("covtype_352k/covtype_352k.xz")
    rows = np.flatnonzero(y <= 3)
    rows = np.random.default_rng(0).permutation(rows)[: 17_766 + 6_621]
    X = _dense(X[rows])
    X /= np.maximum(np.abs(X).max(axis=0), 1e-12)
    return Data(X[:17_766], y[rows[:17_766]], X[17_766:], y[rows[17_766:]])


def _kdd_kinds(library: Library) -> Labels:
    path = library.folder / "kddcup99" / "kddcup.data_10_percent.gz"
    with gzip.open(path, "rt", newline="") as file:
        return np.array([KINDS[row[-1].rstrip(".")] for row in csv.reader(file)], dtype=np.float64)


def _kdd(numbers_only: bool) -> Callable[[Library], Data]:
    """The 10 % set, split at random: its columns of numbers, attack or not; or five kinds."""

    def load(library: Library) -> Data:
        X, y = library.text("kddcup99/kddcup99_10pct_binary.xz")
        X = _dense(X)
        if numbers_only:  # 34 continuous columns, and 4 that are 0 or 1
            X = X[:, _number_columns(library.folder)]
        else:
            y = _kdd_kinds(library)
        order = np.random.default_rng(0).permutation(len(y))
        train, test = order[:395_216], order[395_216:]
        X = np.log1p(X)
        low, high = X[train].min(axis=0), X[train].max(axis=0)
        X = (X - low) / np.where(high > low, high - low, 1)
        return Data(X[train], y[train], X[test], y[test])

    return load


def _number_columns(folder: Path) -> list[int]:
    """Places of the 38 columns that are numbers, among the 127; of a pair of 0 and 1 the latter."""
    lines = (folder / "kddcup99" / "features.txt").read_text().splitlines()
    names = [line.split("\t")[1] for line in lines]
    words = ("protocol_type=", "service=", "flag=")
    return [k for k, name in enumerate(names) if not name.startswith(words) and name[-2:] != "=0"]


LOADERS: dict[str, Callable[[Library], Data]] = {
    **{
        name: _part(f"{whole}/{whole}.xz", n_rows)
        for whole, parts in _OWN["parts"].items()
        for name, n_rows in parts.items()
    },
    "a1a": _files("a9a/a1a.xz", "a9a/a1a.t.xz"),
    "a4a": _files("a9a/a4a.xz", "a9a/a4a.t.xz"),
    "a9a": _files("a9a/a9a.xz", "a9a/a9a.t.xz"),
    "w7a": _files("w8a/w7a.xz", "w8a/w7a.t.xz"),
    "w8a": _part("w8a/w8a.xz", 49_749),
    "w8a-part": _part("w8a/w8a.xz", 34_798),
    "ijcnn1": _files("ijcnn1/ijcnn1.xz", "ijcnn1/ijcnn1.t.xz"),
    "usps": _files("usps/usps.xz", "usps/usps.t.xz"),
    "pendigits": _registered("pendigits"),
    "letter": _files("letter/letter.scale.xz", "letter/letter.scale.t.xz"),
    "shuttle": _files("shuttle/shuttle.scale.xz", "shuttle/shuttle.scale.t.xz"),
    "reuters": _files("reuters/reuters.trn.xz", "reuters/reuters.tst.xz"),
    "mnist": _registered("mnist"),
    "protein": _protein,
    "usps-ext": _usps_ext,
    "kdd-10pc": _kdd(numbers_only=False),
    "kdd-binary": _kdd(numbers_only=True),
    "kdd-full": _kdd_full,
}
"""Every set by the papers' names."""
