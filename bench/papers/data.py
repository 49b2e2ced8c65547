"""The data sets of the papers, in RAM, by the papers' names.

What is not at hand is replaced, and the notes of sets.toml say by what; nothing else is made up.
Parts of a set are nested: a smaller one is the beginning of a larger one, in one random order.
"""

from __future__ import annotations

import csv
import gzip
import lzma
import tomllib
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_svmlight_files

from bench.datasets import DATASETS, prepare
from bench.storage import read_labelled

Labels = npt.NDArray[np.float64]

HOME = Path(__file__).parent
DENSE = 1 / 3  # share of values that are stored, above which rows are dense


def read_toml(name: str) -> dict[str, dict[str, Any]]:
    """A file of this folder."""
    return tomllib.loads((HOME / name).read_text())


_OWN = read_toml("sets.toml")
SETS: dict[str, dict[str, Any]] = _OWN["sets"]

TESTED = {"w8a": "w8a-part"}
"""Sets without a test file, and those whose accuracies are quoted for them."""

KINDS = {name: int(kind) for kind, names in _OWN["kinds"].items() for name in names}
"""Kinds of traffic in the KDD Cup: normal, denial of service, probe, remote to local, to root."""


@dataclass(frozen=True)
class Data:
    """A set: rows and labels to train on, and to test."""

    X: Any
    y: Labels
    X_test: Any
    y_test: Labels


@lru_cache(maxsize=1)
def load(name: str, folder: Path, work: Path) -> Data:
    """A set by name; FileNotFoundError where its file is not there.

    `folder` is that of the real sets, and `work` has converted files.
    """
    own = SETS[name]
    if "files" in own:
        return Data(*_read(folder, *own["files"]))
    if "part_of" in own:
        X, y = _read(folder, own["part_of"])
        return _split(X, y, own["sizes"][0])
    if "dataset" in own:
        paths = prepare(DATASETS[own["dataset"]], folder, work)
        train, test = (read_labelled(path, np.float32) for path in (paths.train, paths.test))
        return Data(*train, *test)
    if name == "usps-ext":
        X, y, X_test, y_test = _read(folder, *SETS["usps"]["files"])
        return Data(*_moved(X, y), *_moved(X_test, y_test))
    if name == "protein":
        X, y = _read(folder, "covtype_352k/covtype_352k.xz")
        return _scaled(_split(X[y <= 3].toarray(), y[y <= 3], *own["sizes"][:2]))
    return _kdd(name, folder)


def _read(folder: Path, *names: str) -> list[Any]:
    """Rows and labels of LIBSVM texts, which get the same columns; dense where few are 0."""
    with ExitStack() as stack:
        files = [stack.enter_context(lzma.open(folder / name)) for name in names]
        parts = load_svmlight_files(files, dtype=np.float32)
    dense = parts[0].nnz > DENSE * np.prod(parts[0].shape)
    return [part.toarray() if dense and part.ndim == 2 else part for part in parts]


def _kdd(name: str, folder: Path) -> Data:
    """The 10 % set, split at random: its columns of numbers, attack or not; or five kinds."""
    X, y = _read(folder, "kddcup99/kddcup99_10pct_binary.xz")
    X = X.toarray()
    if name == "kdd-binary":
        # Columns of numbers, 34 continuous and 4 that are 0 or 1; of those two the latter.
        lines = (folder / "kddcup99" / "features.txt").read_text().splitlines()
        names = [line.split("\t")[1] for line in lines]
        words = ("protocol_type=", "service=", "flag=")
        X = X[:, [not name.startswith(words) and name[-2:] != "=0" for name in names]]
    else:
        with gzip.open(folder / "kddcup99/kddcup.data_10_percent.gz", "rt") as file:
            y = np.array([float(KINDS[row[-1].rstrip(".")]) for row in csv.reader(file)])
    return _scaled(_split(np.log1p(X), y, SETS[name]["sizes"][0]))


def _scaled(data: Data) -> Data:
    """Columns divided by their range from 0 in the rows to train on."""
    most = np.abs(data.X).max(axis=0)
    scale = np.where(most > 0, most, 1)
    return replace(data, X=data.X / scale, X_test=data.X_test / scale)


def _moved(rows: Any, labels: Labels) -> tuple[Any, Labels]:
    """The digits 0 and 1, each moved to all places of a frame of 26 x 26."""
    digits = np.flatnonzero(labels <= 2)
    images = (rows[digits].reshape(-1, 16, 16) + 1) / 2  # the background is 0
    frames = np.zeros((len(images), 121, 26, 26), dtype=np.float32)
    for place in range(121):
        top, left = divmod(place, 11)
        frames[:, place, top : top + 16, left : left + 16] = images
    return frames.reshape(-1, 676), np.repeat(labels[digits], 121)


def _split(X: Any, y: Labels, n_rows: int, n_test: int | None = None) -> Data:
    """The first rows of a set, in one random order, to train on, and the next or all to test."""
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:n_rows], order[n_rows:][:n_test]
    return Data(X[train], y[train], X[test], y[test])
