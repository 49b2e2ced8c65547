"""Rows that are made block by block, in bounded memory, and written as HDF5.

``python -m bench.made KIND ROWS TRAIN TEST [BASE_TRAIN BASE_TEST]`` is what `bench.datasets` calls.
The same kind and number of rows give the same files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import h5py
import numpy as np
from scipy.ndimage import gaussian_filter, map_coordinates

from bench.storage import read_labelled

Draw: TypeAlias = Callable[[int], tuple[Any, Any]]
"""From a number of rows to rows and labels. Rows of ones are given by their columns."""

BLOCK_ROWS = 1 << 16
NORMAL_SHARE = 972_781 / 4_898_431  # of normal connections in the full KDD Cup 99 set
JITTER, FEWEST = 0.003, 4  # deviation of a moved value; a moved column has more values than this
N_CENTRES, SPREAD = 64, 0.03  # deviation of a column around its centre, which is in the unit cube
SIDE = 28  # pixels of a digit
LEVELS = (100, 80, 60, 50, 63, 60, 50)  # of each category


class Maker(NamedTuple):
    """What the rows of a kind are drawn by."""

    n_features: int
    train: Draw
    test: Draw
    one_hot: bool = False
    n_test: int = 50_000
    dtype: str = "f4"  # of dense rows in the file


def connections(rng: np.random.Generator, train: Path, test: Path) -> Maker:
    """Draw rows of KDD99 10 %, as it was converted, with a little noise; its test rows test.

    A row is normal as often as in the full set. Values of columns with more than `FEWEST` values
    move. Zeros stay, and all values stay in [0, 1].
    """
    X, y = read_labelled(train, np.float32, "sparse")
    others, other_labels = read_labelled(test, np.float32, "sparse")
    kinds = {label: np.flatnonzero(y == label) for label in (-1, 1)}
    columns = X.tocsc()
    n_values = [len(np.unique(columns[:, [j]].data)) + 1 for j in range(X.shape[1])]
    moved = np.array(n_values) > FEWEST

    def draw(n: int) -> tuple[Any, Any]:
        labels = np.where(rng.random(n) < NORMAL_SHARE, -1, 1)
        chosen = np.empty(n, dtype=np.int64)
        for label, own in kinds.items():
            chosen[labels == label] = rng.choice(own, np.sum(labels == label))
        rows = X[chosen].toarray()
        zeros = rows == 0
        rows[:, moved] += JITTER * rng.standard_normal((n, moved.sum()), dtype=np.float32)
        rows = np.clip(rows, 0, 1)
        rows[zeros] = 0
        return rows, labels

    places = iter(rng.permutation(len(other_labels)))

    def held_out(n: int) -> tuple[Any, Any]:
        own = [*islice(places, n)]
        return others[own].toarray(), other_labels[own]

    return Maker(X.shape[1], draw, held_out, n_test=min(50_000, len(other_labels)))


def clusters(wrong: float, rng: np.random.Generator) -> Maker:
    """Rows of eight columns around random centres, each of one class, with some wrong labels."""
    centres = rng.random((N_CENTRES, 8))

    def draw(n: int) -> tuple[Any, Any]:
        places = rng.integers(N_CENTRES, size=n)
        rows = centres[places] + SPREAD * rng.standard_normal((n, 8))
        return rows.astype(np.float32), (places + (rng.random(n) < wrong)) % 2

    return Maker(8, draw, draw)


def one_hot(rng: np.random.Generator) -> Maker:
    """Seven categories, one-hot. The odds of a label depend on each, and on two of them jointly."""
    shares = [rng.dirichlet(np.full(n, 0.7)) for n in LEVELS]
    effects = [rng.normal(size=n) for n in LEVELS]
    first = np.cumsum((0, *LEVELS[:-1]))

    def draw(n: int) -> tuple[Any, Any]:
        levels = [rng.choice(len(share), n, p=share) for share in shares]
        odds = sum(effect[own] for effect, own in zip(effects, levels, strict=True))
        columns = (np.stack(levels, axis=1) + first).astype(np.int32)
        odds = odds + 1.5 * np.sin(0.37 * columns[:, 0]) * np.cos(0.51 * columns[:, 2])
        return columns, np.where(odds + rng.logistic(size=n) > 0, 1, -1)

    return Maker(sum(LEVELS), draw, draw, one_hot=True)


def digits(rng: np.random.Generator, train: Path, test: Path) -> Maker:
    """Digits of mnist, as it was converted, each deformed in its own way; its test digits test.

    A digit is turned, scaled and moved a little, and a smooth field moves its pixels by up to two.
    """
    X, y = read_labelled(train, np.float32, "sparse")
    others, other_labels = read_labelled(test, np.float32, "sparse")
    places = np.arange(SIDE, dtype=np.float64)
    centred = np.stack(np.meshgrid(places, places, indexing="ij")) - (SIDE - 1) / 2

    def images(rows: Any) -> Any:
        pixels = rows.toarray()
        lacking = SIDE**2 - pixels.shape[1]  # the last pixels are 0 in all digits
        return np.pad(pixels, ((0, 0), (0, lacking))).reshape(-1, SIDE, SIDE)

    def deformed(image: Any) -> Any:
        angle = 0.12 * rng.normal()
        scale = 1 + 0.06 * rng.normal()
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) / scale
        field = gaussian_filter(rng.uniform(-17, 17, (2, SIDE, SIDE)), (0, 4, 4), mode="constant")
        shift = 0.6 * rng.normal(size=(2, 1, 1)) + (SIDE - 1) / 2
        where = np.tensordot(turn, centred, 1) + field + shift
        return map_coordinates(image, where, np.float32, order=1)

    def draw(n: int) -> tuple[Any, Any]:
        chosen = rng.integers(len(y), size=n)
        rows = [deformed(image).ravel() for image in images(X[chosen])]
        return np.clip(rows, 0, 1), y[chosen]

    unused = iter(range(len(other_labels)))

    def held_out(n: int) -> tuple[Any, Any]:
        own = [*islice(unused, n)]
        return images(others[own]).reshape(len(own), -1), other_labels[own]

    return Maker(SIDE**2, draw, held_out, n_test=len(other_labels), dtype="f2")


KINDS: dict[str, Callable[..., Maker]] = {
    "connections": connections,
    "digits": digits,
    "clustered": partial(clusters, 0.0),
    "noisy": partial(clusters, 0.1),
    "one-hot": one_hot,
}


def write(path: Path, n_rows: int, maker: Maker, draw: Draw) -> None:
    """Write rows and labels in one piece each, so that they can be read where they are."""
    with h5py.File(path, "w") as file:
        y = file.create_dataset("y", (n_rows,), "i1")
        if maker.one_hot:
            width, group = len(LEVELS), file.create_group("X")
            group.attrs["encoding-type"], group.attrs["shape"] = (
                "csr_matrix",
                (n_rows, maker.n_features),
            )
            X = group.create_dataset("indices", (n_rows * width,), "i4")
            ones = group.create_dataset("data", X.shape, "f4")
            group["indptr"] = width * np.arange(n_rows + 1)
        else:
            X = file.create_dataset("X", (n_rows, maker.n_features), maker.dtype)
        for start in range(0, n_rows, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, n_rows)
            rows, y[start:stop] = draw(stop - start)
            if maker.one_hot:
                place = slice(width * start, width * stop)
                X[place], ones[place] = rows.ravel(), 1
            else:
                X[start:stop] = rows


def main(kind: str, n_rows: str, train: str, test: str, *base: str) -> None:
    """Write rows to train on, then those to test."""
    maker = KINDS[kind](np.random.default_rng(0), *map(Path, base))
    write(Path(train), int(n_rows), maker, maker.train)
    write(Path(test), min(maker.n_test, int(n_rows)), maker, maker.test)


if __name__ == "__main__":
    main(*sys.argv[1:])
