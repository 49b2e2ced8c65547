"""Write a training file in HDF5 from front to back, and split a file into two."""

from __future__ import annotations

import io
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import h5py
import numpy as np

from ooc_fw.conversion.readers import MAX_CLASSES, THREADS_NAME
from ooc_fw.conversion.spool import RowBlock
from ooc_fw.data import converted, formats
from ooc_fw.data.encoded import hold_out
from ooc_fw.data.labels import read_classes, read_targets
from ooc_fw.data.rows import FLOAT32, AnyArray, CSRRows, Int64Array, Rows, narrow_type
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import RowSource, iter_blocks
from ooc_fw.data.statistics import add_sums, statistics_of
from ooc_fw.data.views import ScaledSource, SubsetSource
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import atomic_path, flush_to_disk

CHUNK_BYTES = 2 << 20  # size of a chunk of any array
# Types of the arrays beside rows that a file may have, see `RowSource.beside`.
BESIDE = {"y": np.float64, "row": np.int64, "weight": np.float64, "categories": np.int32}


class _Sink(io.FileIO):
    """The file object that HDF5 writes to; it stores its first failure and continues."""

    failure: OSError | None = None

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, with zeros after the end of the file, as every HDF5 driver does."""
        view = memoryview(buffer).cast("B")
        found = super().readinto(view) or 0
        view[found:] = bytes(len(view) - found)
        return len(view)

    def write(self, data: Any) -> int:
        """Write all of `data` at the position that HDF5 sets before every read and write."""
        view = memoryview(data).cast("B")
        done = 0
        try:
            while done < len(view) and self.failure is None:
                done += super().write(view[done:]) or 0
        except OSError as error:
            self.failure = OSError(error.errno, error.strerror, self.name)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        try:
            if self.failure is None:
                super().truncate(size)
        except OSError as error:
            self.failure = OSError(error.errno, error.strerror, self.name)
        return size or 0


@dataclass(frozen=True)
class Layout:
    """Facts about a file that are known before it is written."""

    n_rows: int
    n_features: int
    n_stored: int  # upper limit for the number of stored values, for sparse rows only
    sparse: bool  # whether /X is a CSR group
    source: str  # names of the inputs
    scaling: Scaling
    dtype: np.dtype[Any] = FLOAT32  # type of the values
    compression: str = "none"  # compression of the arrays: none or gzip
    shuffled: bool = False  # whether rows are in random order
    seed: int | None = None  # seed of the shuffle, if it is known
    label_names: Sequence[str] | None = None  # words for the labels 0, 1, ...; None for numbers
    targets: bool = False  # whether labels are targets of a regression
    columns: Sequence[str] | None = None  # names of the features
    table: str | None = None  # `TableRecord` as JSON, if features come from a table
    origin: Mapping[str, str] = field(default_factory=dict)  # see `RowSource.origin`
    n_input: int | None = None  # number of rows of the input; None: `n_rows`

    @property
    def scaled_later(self) -> bool:
        """Whether rows are stored as they came, and are scaled when they are read."""
        return self.dtype != FLOAT32


class _Array:
    """An array that grows chunk by chunk; `pool` computes its checksums at the same time."""

    def __init__(self, dataset: h5py.Dataset, pool: ThreadPoolExecutor) -> None:
        self._dataset = dataset
        self._pool = pool
        self._chunk = np.zeros(dataset.chunks, dtype=dataset.dtype)
        self._length = converted.stretch_length(self._chunk[0].nbytes)
        self._sums = [np.empty(0, dtype=np.uint32)]
        self._filled = self._n_written = 0

    def append(self, block: AnyArray) -> None:
        """Append elements; they are written when a chunk is full."""
        while len(block) > 0:
            taken = block[: len(self._chunk) - self._filled]
            self._chunk[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            if self._filled == len(self._chunk):
                self._flush()
            block = block[len(taken) :]

    def _flush(self) -> None:
        written = self._chunk[: self._filled]
        summing = self._pool.submit(converted.crc32s, written, self._length)
        if self._dataset.compression:
            self._dataset[self._n_written : self._n_written + len(written)] = written
        else:  # without the buffers of HDF5, which takes only whole chunks
            corner = (self._n_written,) + (0,) * (written.ndim - 1)
            self._dataset.id.write_direct_chunk(corner, self._chunk)
        self._sums.append(summing.result())
        self._n_written += len(written)
        self._filled = 0

    def finish(self) -> converted.Checksums:
        """Write the rest; return the checksums of the array."""
        if self._filled:
            self._flush()
        return converted.Checksums(np.concatenate(self._sums), self._length)


class DatasetWriter(h5py.File):  # type: ignore[misc]  # h5py carries no type hints
    """A new training file; rows are appended, and `finish` marks it complete.

    After a failure HDF5 would try to write the same data again when the file is closed and when the
    interpreter ends, and crash there. It is therefore told that all writes succeed. `check` and the
    end of the ``with`` statement raise the error of the disk.
    """

    def __init__(self, path: str | os.PathLike[str], layout: Layout) -> None:
        self._sink = _Sink(os.fspath(path), "w+b")
        # An array is written front to back, so that only its last chunk needs room in the cache.
        super().__init__(
            self._sink, "w", rdcc_nbytes=2 * CHUNK_BYTES, libver=converted.LIBRARY_VERSIONS
        )
        self._layout = layout
        self._n_stored = 0
        self.n_zeros = 0  # rows of zeros among those that are divided by their norms
        self._counts: Counter[float] = Counter()  # rows with each label; empty for targets
        self._sums = np.zeros((2, layout.n_features))
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=THREADS_NAME)
        self._arrays: dict[str, _Array] = {}
        if not layout.sparse:
            self._create("X", layout.dtype, layout.n_rows, layout.n_features)
            return
        self._create("X/data", layout.dtype, layout.n_stored)
        self._create("X/indices", np.dtype(np.int32), layout.n_stored)
        self._create("X/indptr", np.dtype(np.int64), layout.n_rows + 1)
        self._arrays["X/indptr"].append(np.zeros(1, dtype=np.int64))
        # AnnData's encoding of a CSR matrix. Its texts have variable length, as other tools expect;
        # this package never reads them.
        shape = np.array([layout.n_rows, layout.n_features], dtype=np.int64)
        told = {"shape": shape, "encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
        self["X"].attrs.update(told)

    def _create(self, name: str, dtype: np.dtype[Any], length: int, *width: int) -> None:
        is_compressed = self._layout.compression == "gzip"
        row_bytes = max(1, dtype.itemsize * math.prod(width))
        stretch = converted.stretch_length(row_bytes)
        # A chunk has a whole number of stretches and, as float32, about CHUNK_BYTES.
        chunk_bytes = min(4, dtype.itemsize) * CHUNK_BYTES // 4
        chunk = max(1, chunk_bytes // (stretch * row_bytes)) * stretch
        dataset = self.create_dataset(
            name,
            (length, *width),
            dtype,
            maxshape=None if width else (None,),
            chunks=(min(chunk, max(1, length)), *width),
            **({"compression": "gzip", "shuffle": True} if is_compressed else {}),
        )
        self._arrays[name] = _Array(dataset, self._pool)

    def append(self, block: RowBlock) -> None:
        """Append rows; OSError if the disk is full or fails."""
        rows = block.rows
        layout = self._layout
        seen = layout.scaling.apply(rows, layout.n_features) if layout.scaled_later else rows
        add_sums(self._sums, seen)
        if layout.scaling.normalize:
            self.n_zeros += count_zeros(seen)
        values: dict[str, Any] = {**block.beside}
        for name, dtype in BESIDE.items():
            if name in values and name not in self._arrays:
                self._create(name, np.dtype(dtype), self._layout.n_rows, *values[name].shape[1:])
        if "y" in values and not self._layout.targets:
            self._counts.update(count_labels(block.beside["y"]))
        if len(self._counts) > MAX_CLASSES:
            raise InputError(
                f"{self._layout.source} has more than {MAX_CLASSES} different labels; if these are "
                f"targets of a regression, not classes, give --task regression"
            )
        if isinstance(rows, CSRRows):
            values |= {"X/data": rows.data, "X/indices": rows.indices}
            values["X/indptr"] = rows.indptr[1:] + self._n_stored
            self._n_stored += len(rows.data)
        else:
            values["X"] = rows
        for name, array in self._arrays.items():
            array.append(values[name])
        self.check()

    def check(self) -> None:
        """Raise the first error of the disk, if there is one."""
        if self._sink.failure is not None:
            raise self._sink.failure

    def close(self) -> None:
        """Write the rest and close the file; a second call does nothing."""
        super().close()
        self._sink.close()

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self.close()
        if kind is None:
            self.check()

    @property
    def class_counts(self) -> dict[Any, int]:
        """Number of rows with each label (a number or a word), in order."""
        words = self._layout.label_names
        counts = sorted(self._counts.items())
        return {label if words is None else words[int(label)]: count for label, count in counts}

    def finish(self) -> None:
        """Write attributes, statistics and checksums, which make the file complete."""
        sums = {name: array.finish() for name, array in self._arrays.items()}
        self._pool.shutdown()
        layout = self._layout
        if layout.sparse:
            # There may be fewer values than expected, since scaling turns some into zeros.
            self["X/data"].resize((self._n_stored,))
            self["X/indices"].resize((self._n_stored,))
        statistics = statistics_of(self._sums, layout.n_rows)
        attributes = {
            "format_version": converted.FORMAT_VERSION,
            "n_rows": layout.n_rows,
            "n_features": layout.n_features,
            "class_names": np.array(sorted(self._counts), np.float64),
            "shuffled": layout.shuffled,
            "shuffle_seed": layout.seed,
            "mean_square_norm": statistics.mean_square_norm,
            formats.N_INPUT: layout.n_input,
            formats.TARGETS: layout.targets or None,
        }
        texts = {
            "source": layout.source,
            formats.COLUMNS: layout.columns,
            formats.RECORD: layout.table,
            formats.ORIGIN: json.dumps(layout.origin) if layout.origin else None,
        }
        attributes |= {name: formats.as_bytes(text) for name, text in texts.items() if text}
        known = {name: value for name, value in attributes.items() if value is not None}
        self.attrs.update(known)
        if layout.label_names is not None:
            self["y"].attrs[formats.LABEL_NAMES] = formats.as_bytes(layout.label_names)
        self["mean"] = statistics.mean
        layout.scaling.write(self)
        self.attrs["complete"] = 1
        converted.write_checksums(self, sums)
        self.check()


def count_zeros(rows: Rows) -> int:
    """Number of rows whose values are all zeros."""
    if isinstance(rows, CSRRows):
        return len(rows) - len(np.unique(rows.row_numbers()[rows.data != 0]))
    return int(np.count_nonzero(~rows.any(axis=1)))


def count_labels(labels: AnyArray) -> dict[Any, int]:
    """Number of rows with each label, sorted by label."""
    names, numbers = np.unique(labels, return_counts=True)
    return dict(zip(names.tolist(), numbers.tolist(), strict=True))


def write_parts(
    source: RowSource,
    test_rows: Int64Array,
    outputs: Sequence[str | os.PathLike[str]],
    compression: str = "none",
) -> list[dict[str, Any]]:
    """Write the `test_rows` to the second of two files, and all other rows to the first.

    Rows keep their order, their numbers in the input, and what is known about them. The files
    appear after both are written. Returns output, n_rows, targets and class_counts for each.
    """
    classes = None
    targets = source.has_labels and bool(source.targets)
    if targets:
        read_targets(source)  # it raises InputError if one of them is not finite
    elif source.has_labels:
        classes = read_classes(source)
        numbers = classes.numbers
    stored = source
    if isinstance(source, ScaledSource) and narrow_type(source.source.dtype) != FLOAT32:
        stored = source.source  # the parts are scaled when they are read, too
    layout = Layout(
        n_rows=source.n_rows,
        n_features=source.n_features,
        n_stored=stored.decoded_bytes // 8,  # at least the number of stored values
        sparse=stored.sparse,
        source=os.path.basename(source.name),
        scaling=source.scaling or Scaling(),
        dtype=narrow_type(stored.dtype),
        compression=compression,
        shuffled=bool(source.shuffled),
        label_names=None if classes is None or numbers is not None else classes.names,
        targets=targets,
        columns=source.columns,
        origin=source.origin,
        n_input=source.n_input,
    )
    reports: list[dict[str, Any]] = []
    with ExitStack() as stack:
        paths = [stack.enter_context(atomic_path(output)) for output in outputs]
        for part, path, output in zip(hold_out(source, test_rows), paths, outputs, strict=True):
            if reports:  # the features of the second part do not depend on its own labels
                part.beside.pop("categories", None)
            own = replace(layout, n_rows=part.n_rows, table=part.table)
            raw = part if stored is source else SubsetSource(stored, part.rows)
            with part, raw, DatasetWriter(path, own) as writer:
                for start, rows in iter_blocks(raw, 0, part.n_rows):
                    here = slice(start, start + len(rows))
                    beside = {name: values[here] for name, values in part.beside.items()}
                    if classes is not None:
                        codes = classes.of(beside["y"])
                        beside["y"] = codes if numbers is None else numbers[codes]
                    writer.append(RowBlock(rows, beside))
                writer.finish()
            facts = {"output": str(output), "n_rows": part.n_rows, "targets": targets}
            reports.append(facts | {"class_counts": writer.class_counts})
        for path in paths:
            flush_to_disk(path)  # both files, before the first one is renamed
    return reports
