"""The synthetic stand-in for the full KDD Cup 99 set, as LIBSVM text made on the fly.

The full set has 4,898,431 rows; at hand is its 10 % sample with the attack names. The seven classes
that were thinned out for the sample are drawn anew from their rows, with replacement, as often as
the full set has them; the rows of all other classes are kept, each once. The continuous columns of
every drawn row are then moved a little, since plain repeats would flatter caches and
support-vector counts: integers by up to 2 % to the nearest integer (what is below 25 stays), rates
by up to 0.01. A zero stays zero, nothing else becomes zero, and no value leaves the range that its
column has in the sample. Rows come in random order, so that the first few are a fair sample of all.

The text is a function of the sample, the seed and the number of rows alone. Anything measured on
it is to be reported as measured on synthetic data. `bench.datasets` is the command for people.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

SAMPLE = "kddcup99/kddcup.data_10_percent.gz"
FEATURES = "kddcup99/features.txt"

CLASS_COUNTS = {
    "smurf": 2_807_886,
    "neptune": 1_072_017,
    "normal": 972_781,
    "satan": 15_892,
    "ipsweep": 12_481,
    "portsweep": 10_413,
    "nmap": 2_316,
}
"""Rows of the full set in the classes of which the sample holds a part."""
NORMAL = "normal"  # the one class with label -1

BLOCK_ROWS = 16_384
LONGEST_CELL = 15  # blank, index of 3 digits, colon, value of 10
LONGEST_LABEL = 3  # and the newline
COLUMN_SHIFT = 32  # of a column beside its value in one number

# How a column's values are written and moved.
NOMINAL = 0  # one of several columns, which holds a 1
INTEGER = 1
RATE = 2  # in hundredths
PER_CENT = 2  # an integer moves by at most
HUNDREDTHS = 1  # a rate moves by at most

U64 = np.uint64
GAMMA = U64(0x9E3779B97F4A7C15)  # SplitMix64, as in ooc_fw.convert.spool
FIRST_FACTOR = U64(0xBF58476D1CE4E5B9)
SECOND_FACTOR = U64(0x94D049BB133111EB)


class Table(NamedTuple):
    """Distinct rows of the 10 % set, as compiled code takes them."""

    columns: npt.NDArray[np.int32]  # from 1, of each nonzero cell
    values: npt.NDArray[np.int32]  # of each nonzero cell: 1, an integer, or hundredths
    indptr: npt.NDArray[np.int64]  # where the cells of each row begin
    labels: npt.NDArray[np.int8]  # of each row: +1 for an attack, -1 for normal
    kinds: npt.NDArray[np.int8]  # NOMINAL, INTEGER or RATE, by column
    largest: npt.NDArray[np.int32]  # value of each column


class Plan(NamedTuple):
    """Which rows are written. They are numbered class by class, those that are kept last."""

    members: npt.NDArray[np.int32]  # distinct row of each row of the sample
    starts: npt.NDArray[np.int64]  # where the members of each drawn class begin
    ends: npt.NDArray[np.int64]  # where the numbers of each drawn class begin
    order: npt.NDArray[np.uint32]  # number of each line


class Sample(NamedTuple):
    """The 10 % set, equal rows once, and the distinct row of each row of each class."""

    table: Table
    members: dict[str, npt.NDArray[np.int32]]


def read_sample(data: Path) -> Sample:
    """Read the 10 % set and the layout of its LIBSVM form from the data folder."""
    columns_of = _read_features(data / FEATURES)
    number: dict[str, int] = {}  # of each distinct line
    members: dict[str, list[int]] = {}
    with gzip.open(data / SAMPLE, "rt", encoding="ascii") as lines:
        for line in lines:
            name = line[line.rindex(",") + 1 :].strip().rstrip(".")
            members.setdefault(name, []).append(number.setdefault(line, len(number)))
    fields = [_Field(columns) for columns in columns_of]
    labels = np.ones(len(number), dtype=np.int8)
    labels[members.get(NORMAL, [])] = -1
    codes = [
        [field[text] for field, text in zip(fields, line.split(",")[:-1], strict=True)]
        for line in number
    ]
    table = np.array(codes, dtype=np.int64)
    filled = table != 0
    columns = (table[filled] >> COLUMN_SHIFT).astype(np.int32)
    values = (table[filled] & ((1 << COLUMN_SHIFT) - 1)).astype(np.int32)
    kinds = np.zeros(1 + max(max(numbers.values()) for numbers in columns_of), dtype=np.int8)
    for field in fields:
        if field.column is not None:
            kinds[field.column] = field.kind
    largest = np.zeros(len(kinds), dtype=np.int32)
    np.maximum.at(largest, columns, values)
    indptr = np.concatenate([[0], np.cumsum(filled.sum(axis=1))])
    own = {name: np.array(rows, dtype=np.int32) for name, rows in members.items()}
    return Sample(Table(columns, values, indptr, labels, kinds, largest), own)


def _read_features(path: Path) -> list[dict[str, int]]:
    """Columns of each raw field: by value where it is nominal, else one under the empty string."""
    fields: dict[str, dict[str, int]] = {}
    for line in path.read_text(encoding="ascii").splitlines():
        column, feature = line.split("\t")
        field, _, value = feature.partition("=")
        fields.setdefault(field, {})[value] = int(column)
    return list(fields.values())


class _Field(dict[str, int]):
    """Texts of one raw field as ``column << COLUMN_SHIFT | value``, 0 for a zero; fills itself."""

    def __init__(self, columns: dict[str, int]) -> None:
        super().__init__()
        self.column = columns.get("")
        self.kind = INTEGER
        self._columns = columns

    def __missing__(self, text: str) -> int:
        if self.column is None:
            code = self._columns[text] << COLUMN_SHIFT | 1
        else:
            whole, point, fraction = text.partition(".")
            if point:
                self.kind = RATE
            value = int(whole) * 100 + int(fraction) if point else int(whole)
            code = self.column << COLUMN_SHIFT | value if value else 0
        self[text] = code
        return code


class Generator:
    """Lines of the synthetic set, block by block; `n_rows` says how many there are.

    Parameters
    ----------
    sample : Sample
        Where rows come from.
    seed : int
        Of the drawing, the moving and the order, at least 0.
    counts : dict or None
        Rows to draw of some classes, the others are kept; None for those of the full set.
    moved : bool
        Whether continuous values are moved; False gives plain repeats.
    """

    def __init__(
        self,
        sample: Sample,
        seed: int = 0,
        counts: dict[str, int] | None = None,
        *,
        moved: bool = True,
    ) -> None:
        if counts is None:
            counts = {name: n for name, n in CLASS_COUNTS.items() if name in sample.members}
        drawn = [sample.members[name] for name in counts]
        kept = [rows for name, rows in sample.members.items() if name not in counts]
        starts, ends = np.cumsum([0, *map(len, drawn)]), np.cumsum([0, *counts.values()])
        self.n_rows = int(ends[-1]) + sum(map(len, kept))
        self._key = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
        order = np.arange(self.n_rows, dtype=np.uint32)
        _shuffle(order, self._key)
        self._table, self._moved = sample.table, moved
        self._plan = Plan(np.concatenate([*drawn, *kept]), starts, ends, order)
        longest = int(np.diff(sample.table.indptr).max()) * LONGEST_CELL + LONGEST_LABEL + 1
        self._out = np.empty(BLOCK_ROWS * longest, dtype=np.uint8)

    def blocks(self, n_rows: int | None = None) -> Iterator[memoryview]:
        """Text of the first `n_rows` lines, or of all; a block is overwritten by the next one."""
        stop = self.n_rows if n_rows is None else min(n_rows, self.n_rows)
        for first in range(0, stop, BLOCK_ROWS):
            last = min(first + BLOCK_ROWS, stop)
            how = self._key, self._moved
            n_bytes = _write_rows(first, last, self._table, self._plan, *how, self._out)
            yield self._out[:n_bytes].data


@njit(cache=True)
def _mix(state):
    """Output function of SplitMix64."""
    state = (state ^ (state >> U64(30))) * FIRST_FACTOR
    state = (state ^ (state >> U64(27))) * SECOND_FACTOR
    return state ^ (state >> U64(31))


@njit(cache=True)
def _below(number, limit):
    """Random 64 bits as one of 0 .. limit - 1; the bias is below limit / 2**32."""
    return np.int64(((number >> U64(32)) * U64(limit)) >> U64(32))


@njit(cache=True)
def _shuffle(order, key):
    """Random order, in place (Fisher and Yates, in the form of Durstenfeld, 1964)."""
    state = key ^ FIRST_FACTOR  # apart from the numbers that rows are made with
    for i in range(order.size - 1, 0, -1):
        state += GAMMA
        j = _below(_mix(state), i + 1)
        order[i], order[j] = order[j], order[i]


@njit(cache=True)
def _write_rows(first, stop, table, plan, key, moved, out):
    """Write lines ``first:stop`` into `out`, of unsigned bytes; returns how many bytes."""
    at, n_drawn = 0, plan.ends.size - 1
    for line in range(first, stop):
        number = np.int64(plan.order[line])
        state = _mix(key + (U64(number) + U64(1)) * GAMMA)
        part = 0
        while part < n_drawn and number >= plan.ends[part + 1]:
            part += 1
        if part < n_drawn:
            place = _below(state, plan.starts[part + 1] - plan.starts[part])
        else:
            place = number - plan.ends[part]
        row = plan.members[plan.starts[part] + place]
        out[at] = 45 if table.labels[row] < 0 else 43  # - or +
        out[at + 1] = 49
        at += 2
        for k in range(table.indptr[row], table.indptr[row + 1]):
            column = table.columns[k]
            kind, value = table.kinds[column], np.int64(table.values[k])
            out[at] = 32
            at = _write_integer(np.int64(column), out, at + 1)
            out[at] = 58
            at += 1
            if kind == NOMINAL:
                out[at] = 49
                at += 1
                continue
            if moved and part < n_drawn:
                most = (2 * PER_CENT * value + 100) // 200 if kind == INTEGER else HUNDREDTHS
                if most > 0:
                    state += GAMMA
                    value += _below(_mix(state), 2 * most + 1) - most
                    value = min(max(value, 1), np.int64(table.largest[column]))  # type: ignore[arg-type]
            if kind == INTEGER:
                at = _write_integer(value, out, at)
            else:
                at = _write_hundredths(value, out, at)
        out[at] = 10
        at += 1
    return at


@njit(cache=True)
def _write_integer(value, out, at):
    """Decimal digits of `value` >= 0 from `at` on; returns the position after them."""
    size = 1
    limit = 10
    while value >= limit:
        size += 1
        limit *= 10
    for k in range(at + size - 1, at - 1, -1):
        rest = value // 10
        out[k] = 48 + value - 10 * rest
        value = rest
    return at + size


@njit(cache=True)
def _write_hundredths(value, out, at):
    """Decimal form of ``value / 100``, the shortest."""
    at = _write_integer(value // 100, out, at)
    rest = value % 100
    if rest == 0:
        return at
    out[at] = 46
    out[at + 1] = 48 + rest // 10
    at += 2
    if rest % 10 > 0:
        out[at] = 48 + rest % 10
        at += 1
    return at


def main(argv: Sequence[str] | None = None) -> int:
    """Write the text on standard output."""
    parser = argparse.ArgumentParser(prog="python -m bench.kdd_full")
    parser.add_argument("data", type=Path, help="folder of the real sets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int)
    args = parser.parse_args(argv)
    try:
        for block in Generator(read_sample(args.data), args.seed).blocks(args.rows):
            sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The reader has gone. Python would complain when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except FileNotFoundError as error:
        print(f"{error.filename} does not exist; name the folder with --data", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
