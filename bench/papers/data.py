"""The data sets of the papers, in RAM, by the papers' names.

What is not at hand is replaced, and the notes of sets.toml say by what; nothing else is made up.
Parts of a set are nested: a smaller one is the beginning of a larger one, in one random order.
"""

from __future__ import annotations

import csv
import gzip
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from bench.datasets import DATASETS, prepare
from bench.process import OOC_FW, run_measured
from bench.storage import read_labelled

Labels = npt.NDArray[np.float64]

HOME = Path(__file__).parent


def read_toml(name: str) -> dict[str, dict[str, Any]]:
    """A file of this folder."""
    return tomllib.loads((HOME / name).read_text())


_OWN = read_toml("sets.toml")
SETS: dict[str, dict[str, Any]] = _OWN["sets"]

TESTED = {"w8a": "w8a-part"}
"""Sets without a test file, and those whose accuracies are quoted for them."""

KINDS = {name: int(kind) for kind, names in _OWN["kinds"].items() for name in names}
"""Kinds of traffic in the KDD Cup: normal, denial of service, probe, remote to local, to root."""

LARGEST_QUICK = 800, 600  # rows of a thinned set, to train on and to test


@dataclass(frozen=True)
class Data:
    """A set: rows and labels to train on, and to test."""

    X: Any
    y: Labels
    X_test: Any
    y_test: Labels

    def thinned(self) -> Data:
        """Random rows, at most about `LARGEST_QUICK` of them, of every class at least a few."""
        rng, chosen = np.random.default_rng(0), []
        for y, most in zip((self.y, self.y_test), LARGEST_QUICK, strict=True):
            order = rng.permutation(len(y))
            few = [order[y[order] == label][:20] for label in np.unique(y)]
            chosen.append(np.unique(np.concatenate([order[:most], *few])))
        some, others = chosen
        return Data(self.X[some], self.y[some], self.X_test[others], self.y_test[others])


class Library:
    """Loads sets by name, thinned ones if `quick`; the one used last is kept.

    `folder` is that of the real sets, and `work` has converted files.
    """

    def __init__(self, folder: Path, work: Path, *, quick: bool = False) -> None:
        self.folder, self.work, self.quick = folder.resolve(), work.resolve(), quick
        self._last: tuple[str, Data] | None = None

    def get(self, name: str) -> Data:
        """A set by name; FileNotFoundError where its file is not there."""
        if self._last is None or self._last[0] != name:
            self._last = None  # frees its memory
            data = self._load(name)
            self._last = name, data.thinned() if self.quick else data
        return self._last[1]

    def _load(self, name: str) -> Data:
        own = SETS[name]
        if "files" in own:
            return self._pair(*own["files"])
        if "part_of" in own:
            return _split(*self._text(own["part_of"]), own["sizes"][0])
        if "dataset" in own:
            # Thinned, the set that the synthetic one is drawn from does as well.
            wanted = "kdd99" if self.quick and name == "kdd-full" else own["dataset"]
            paths = prepare(DATASETS[wanted], self.folder, self.work)
            train, test = (read_labelled(path, np.float32) for path in (paths.train, paths.test))
            return Data(*train, *test)
        if name == "usps-ext":
            return self._usps_ext()
        return self._protein() if name == "protein" else self._kdd(name)

    def _text(self, name: str) -> tuple[Any, Labels]:
        """Rows and labels of one LIBSVM text, as CSR or dense as the converter sees fit."""
        path = self.folder / name
        if not path.exists():
            raise FileNotFoundError(f"{path} is not there; name the folder of the sets with --data")
        target = self.work / "papers" / (name.replace("/", "-").removesuffix(".xz") + ".h5")
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            run_measured([*OOC_FW, "convert", path, target, "--no-shuffle"])
        return read_labelled(target, np.float32)

    def _pair(self, train: str, test: str) -> Data:
        """Two files, of which the second gets the columns of the first."""
        (X, y), (T, t) = self._text(train), self._text(test)
        T = scipy.sparse.csr_matrix(T)
        T.resize(len(t), X.shape[1])
        return Data(X, y, T if scipy.sparse.issparse(X) else T.toarray(), t)

    def _usps_ext(self) -> Data:
        both = self._pair(*SETS["usps"]["files"])
        parts: list[Any] = []
        for rows, labels in ((both.X, both.y), (both.X_test, both.y_test)):
            digits = np.flatnonzero(labels <= 2)  # the digits 0 and 1
            if self.quick:
                digits = digits[:: max(1, len(digits) // 40)]
            images = (rows[digits].reshape(-1, 16, 16) + 1) / 2  # the background is 0
            frames = np.zeros((len(images), 121, 26, 26), dtype=np.float32)
            for place in range(121):
                top, left = divmod(place, 11)
                frames[:, place, top : top + 16, left : left + 16] = images
            parts += [frames.reshape(-1, 676), np.repeat(labels[digits], 121)]
        return Data(*parts)

    def _protein(self) -> Data:
        X, y = self._text("covtype_352k/covtype_352k.xz")
        rows = np.flatnonzero(y <= 3)
        rows = np.random.default_rng(0).permutation(rows)[: sum(SETS["protein"]["sizes"][:2])]
        X = _dense(X[rows])
        X /= np.maximum(np.abs(X).max(axis=0), 1e-12)
        n_train = SETS["protein"]["sizes"][0]
        return Data(X[:n_train], y[rows[:n_train]], X[n_train:], y[rows[n_train:]])

    def _kdd(self, name: str) -> Data:
        """The 10 % set, split at random: its columns of numbers, attack or not; or five kinds."""
        X, y = self._text("kddcup99/kddcup99_10pct_binary.xz")
        X = _dense(X)
        folder = self.folder / "kddcup99"
        if name == "kdd-binary":
            # Columns of numbers, 34 continuous and 4 that are 0 or 1; of those two the latter.
            lines = (folder / "features.txt").read_text().splitlines()
            names = [line.split("\t")[1] for line in lines]
            words = ("protocol_type=", "service=", "flag=")
            X = X[:, [not name.startswith(words) and name[-2:] != "=0" for name in names]]
        else:
            with gzip.open(folder / "kddcup.data_10_percent.gz", "rt", newline="") as file:
                y = np.array([float(KINDS[row[-1].rstrip(".")]) for row in csv.reader(file)])
        data = _split(np.log1p(X), y, SETS[name]["sizes"][0])
        low, high = data.X.min(axis=0), data.X.max(axis=0)
        for rows in (data.X, data.X_test):
            rows -= low
            rows /= np.where(high > low, high - low, 1)
        return data


def _split(X: Any, y: Labels, n_rows: int) -> Data:
    """The first rows of a set, in one random order, to train on, and the others to test."""
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:n_rows], order[n_rows:]
    return Data(X[train], y[train], X[test], y[test])


def _dense(rows: Any) -> npt.NDArray[np.float32]:
    return np.asarray(rows.toarray() if scipy.sparse.issparse(rows) else rows)
