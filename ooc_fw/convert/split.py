"""One data file into two: a training and a test part, each an HDF5 file of its own."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from ooc_fw.convert.writer import DatasetWriter, Layout, OutputFile, Summary
from ooc_fw.data.converted import is_converted
from ooc_fw.data.formats import is_hdf5
from ooc_fw.data.hdf5 import HDF5Group, structure_errors
from ooc_fw.data.labels import are_targets, encode_labels, read_targets
from ooc_fw.data.names import COLUMNS, RECORD, put_text, put_texts
from ooc_fw.data.ranges import ColumnSums
from ooc_fw.data.rows import AnyArray, Float64Array, Int64Array
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import RowSource, iter_blocks
from ooc_fw.data.views import SubsetSource, complement, ranges_of
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import atomic_path, flush_to_disk


@dataclass(frozen=True)
class PartReport:
    """What one of the parts holds: rows of each label, in all, and where."""

    output: str
    n_rows: int
    class_counts: dict[Any, int]


@dataclass(frozen=True)
class _Labels:
    """Labels of a whole file as they are stored: numbers, or codes of words."""

    numbers: Float64Array | None  # (n_rows,); None where there are none
    words: AnyArray | None = None
    targets: bool = False  # whether they are targets of a regression

    @classmethod
    def of(cls, source: RowSource) -> _Labels:
        """Those of a source; InputError where they are missing."""
        if not source.has_labels:
            return cls(None)
        if are_targets(source):
            return cls(read_targets(source), targets=True)
        values, codes = encode_labels(source)
        if values.dtype.kind in "biuf":
            return cls(values[codes].astype(np.float64))
        return cls(codes.astype(np.float64), values)

    def stored(self, rows: Int64Array) -> Float64Array:
        """Numbers of some rows."""
        return np.zeros(len(rows)) if self.numbers is None else self.numbers[rows]


def read_test_rows(path: str, source: RowSource) -> Int64Array:
    """Ranges of the rows that a file lists, counted from 0: text with a number a line, or .npy."""
    try:
        found = (
            np.load(path) if path.endswith(".npy") else np.loadtxt(path, dtype=np.int64, ndmin=1)
        )
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check the name of --rows") from None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} does not list row numbers ({error}); write one a line, counted from 0"
        ) from None
    if found.ndim != 1 or found.dtype.kind not in "iu" or len(found) == 0:
        raise InputError(f"{path} must list whole numbers, one row a line")
    rows = np.unique(found.astype(np.int64))
    if len(rows) < len(found):
        raise InputError(f"{path} names a row twice; name each once")
    if rows[0] < 0 or rows[-1] >= source.n_rows:
        wrong = rows[0] if rows[0] < 0 else rows[-1]
        raise InputError(
            f"{path} names row {wrong}; {source.name} has rows 0 to {source.n_rows - 1}"
        )
    if len(rows) == source.n_rows:
        raise InputError(f"{path} names all rows of {source.name}, and none is left for training")
    return ranges_of(rows)


def split(
    source: RowSource,
    test_ranges: Int64Array,
    outputs: Sequence[str | os.PathLike[str]],
    *,
    compression: str = "none",
    on_rows: Callable[[int], None] | None = None,
) -> list[PartReport]:
    """Write the rows outside `test_ranges` to the first of two files, those inside to the second.

    Rows keep the order that they have in `source`, and so do their numbers, which are counted anew.
    The files have whatever else is known of it: scaling, names of columns and categories, whether
    rows are in random order. Both files appear when all is written, or none. `on_rows` is told the
    number of rows written.
    """
    labels = _Labels.of(source)
    seed = _shuffle_seed(source.name)
    reports, done = [], 0
    with ExitStack() as stack:
        paths = [stack.enter_context(atomic_path(output)) for output in outputs]
        for ranges, path, output in zip(
            (complement(test_ranges, source.n_rows), test_ranges), paths, outputs, strict=True
        ):
            with SubsetSource(source, ranges) as part, OutputFile(path) as file:
                layout = Layout(
                    part.n_rows,
                    part.n_features,
                    source.decoded_bytes // 8,  # no fewer than are stored
                    part.sparse,
                    compression,
                    source.has_labels,
                )
                found: Counter[Any] = Counter()
                numbers = np.argsort(np.argsort(part.row_ids(0, part.n_rows)))
                writer, sums = DatasetWriter(file, layout), ColumnSums(part.n_features)
                for start, rows in iter_blocks(part, 0, part.n_rows):
                    stop = start + len(rows)
                    places = part.rows_at(np.arange(start, stop))
                    own = labels.stored(places)
                    if not labels.targets:
                        found.update(dict(zip(*np.unique(own, return_counts=True), strict=True)))
                    writer.append(rows, own, numbers[start:stop])
                    sums.add(rows)
                    done += len(rows)
                    if on_rows is not None:
                        on_rows(done)
                counts = {float(label): int(n) for label, n in sorted(found.items())}
                words = None if labels.words is None else labels.words.tolist()
                counts = counts if source.has_labels else {}
                if source.columns is not None:
                    put_texts(file.attrs, COLUMNS, source.columns)
                if source.table is not None:
                    put_text(file.attrs, RECORD, source.table)
                moments = sums.statistics
                writer.finish(
                    Summary(
                        counts,
                        os.path.basename(source.name),
                        source.scaling or Scaling(),
                        moments.mean,
                        moments.mean_square_norm,
                        seed if source.shuffled else None,
                        words,
                        labels.targets,
                    )
                )
            named = {k if words is None else words[int(k)]: n for k, n in counts.items()}
            reports.append(PartReport(os.fspath(output), part.n_rows, named))
        for path in paths:
            flush_to_disk(path)  # all of them before one is renamed
    return reports


def _shuffle_seed(path: str) -> int:
    """Seed of the shuffle of a converted file."""
    if not (os.path.isfile(path) and is_hdf5(path)):
        return 0
    with structure_errors(path), h5py.File(path, "r") as file:
        return int(file.attrs.get("shuffle_seed", 0)) if is_converted(HDF5Group(file)) else 0
