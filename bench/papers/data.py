"""The data sets of the papers, in RAM, by the papers' names.

What is not at hand is replaced, and `NOTES` says by what; nothing else is made up. Parts of a set
are nested: a smaller one is the beginning of a larger one, in one random order.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from bench.datasets import DATASETS, convert, prepare
from bench.storage import read_labelled

Labels = npt.NDArray[np.float64]

ADULT_ROWS = {"a2a": 2265, "a3a": 3185, "a5a": 6414, "a6a": 11220, "a7a": 16100}
WEB_ROWS = {"w1a": 2477, "w2a": 3470, "w3a": 4912, "w4a": 7366, "w5a": 9888, "w6a": 17188}
WEB_TEST_ROWS = 14_951  # of w8a's own test file, which is not at hand

NOTES = {
    **dict.fromkeys(ADULT_ROWS, "a random part of a9a of the same size; the rest of a9a tests"),
    **dict.fromkeys(WEB_ROWS, "a random part of w8a of the same size; the rest of w8a tests"),
    "w8a": "the set itself; its test file is not at hand, and accuracies are those of w8a-part",
    "w8a-part": "34,798 random rows of w8a; the other 14,951, as many as its test file has, test",
    "usps-ext": "made from the digits 0 and 1 of usps, each moved to the 11 x 11 places of a frame "
    "of 26 x 26: as many rows as the original, 266,079 and 75,383",
    "protein": "stand-in: 17,766 and 6,621 random rows of covtype of classes 1 to 3, as noisy a "
    "problem of three classes",
    "kdd-10pc": "from the raw records: five kinds of traffic, 127 columns, log(1 + x) scaled to "
    "[0, 1]; a random fifth tests",
    "kdd-binary": "the 38 columns of the raw records that are numbers, log(1 + x) scaled to "
    "[0, 1], attack or not; a random fifth tests",
    "kdd-full": "synthetic: the 10 % set drawn from again by class to 4,898,431 rows",
}
"""Sets that are not files as the papers had them, and what they are here."""

TESTED = {"w8a": "w8a-part"}
"""Sets without a test file, and those whose accuracies are quoted for them."""

KINDS = {
    "normal": 0,
    **dict.fromkeys("back land neptune pod smurf teardrop".split(), 1),
    **dict.fromkeys("satan ipsweep nmap portsweep".split(), 2),
    **dict.fromkeys(
        "guess_passwd ftp_write imap phf multihop warezmaster warezclient spy".split(), 3
    ),
    **dict.fromkeys("buffer_overflow loadmodule rootkit perl".split(), 4),
}
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

    def sizes(self) -> dict[str, int]:
        """Rows to train on and to test, columns, and classes."""
        return {
            "n_train": len(self.y),
            "n_test": len(self.y_test),
            "n_features": self.X.shape[1],
            "n_classes": len(np.unique(self.y)),
        }

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
        width = X.shape[1]
        T = _widened(T, width)[:, :width]
        if scipy.sparse.issparse(X):
            return Data(X, y, scipy.sparse.csr_matrix(T), t)
        return Data(X, y, T.toarray() if scipy.sparse.issparse(T) else T, t)

    @cached_property
    def web(self) -> Data:
        """All of w8a in one random order, and nothing to test."""
        return self._shuffled("w8a/w8a.xz")

    @cached_property
    def adult(self) -> Data:
        """All of a9a in one random order."""
        return self._shuffled("a9a/a9a.xz")

    def _shuffled(self, name: str) -> Data:
        X, y = self.text(name)
        order = np.random.default_rng(0).permutation(len(y))
        return Data(X[order], y[order], X[:0], y[:0])


def _widened(rows: Any, width: int) -> Any:
    """Rows with columns of zeros behind them, where they have fewer than `width`."""
    lacking = width - rows.shape[1]
    if lacking <= 0:
        return rows
    if scipy.sparse.issparse(rows):
        return scipy.sparse.hstack(
            [rows, scipy.sparse.csr_matrix((rows.shape[0], lacking))], format="csr"
        )
    return np.pad(rows, ((0, 0), (0, lacking)))


# -- where sets come from ------------------------------------------------------------------------


def _part(whole: Callable[[Library], Data], n_rows: int) -> Callable[[Library], Data]:
    """The first rows of a set to train on, and the others to test."""

    def load(library: Library) -> Data:
        data = whole(library)
        X, y = data.X, data.y
        return Data(X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:])

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
    parts = []
    for rows, labels in ((both.X, both.y), (both.X_test, both.y_test)):
        digits = labels <= 2  # the digits 0 and 1
        images = (np.asarray(rows[digits]).reshape(-1, 16, 16) + 1) / 2  # the background is 0
        if library.quick:
            images = images[:: max(1, len(images) // 40)]
            labels = labels[digits][:: max(1, int(digits.sum()) // 40)]
        else:
            labels = labels[digits]
        frames = np.zeros((len(images), 121, 26, 26), dtype=np.float32)
        for place in range(121):
            top, left = divmod(place, 11)
            frames[:, place, top : top + 16, left : left + 16] = images
        parts += [frames.reshape(-1, 676), np.repeat(labels, 121)]
    return Data(*parts)


def _protein(library: Library) -> Data:
    X, y = library.text("covtype_352k/covtype_352k.xz")
    rows = np.flatnonzero(y <= 3)
    rows = np.random.default_rng(0).permutation(rows)[: 17_766 + 6_621]
    X = np.asarray(X[rows].toarray() if scipy.sparse.issparse(X) else X[rows])
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
        X = np.asarray(X.toarray() if scipy.sparse.issparse(X) else X)
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
    **{name: _part(lambda own: own.adult, n_rows) for name, n_rows in ADULT_ROWS.items()},
    **{name: _part(lambda own: own.web, n_rows) for name, n_rows in WEB_ROWS.items()},
    "a1a": _files("a9a/a1a.xz", "a9a/a1a.t.xz"),
    "a4a": _files("a9a/a4a.xz", "a9a/a4a.t.xz"),
    "a9a": _files("a9a/a9a.xz", "a9a/a9a.t.xz"),
    "w7a": _files("w8a/w7a.xz", "w8a/w7a.t.xz"),
    "w8a": lambda library: library.web,
    "w8a-part": _part(lambda own: own.web, 49_749 - WEB_TEST_ROWS),
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
