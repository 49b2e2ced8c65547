"""The HDF5 layout of a training file, written front to back, and one file cut into two of them."""

from __future__ import annotations

import io
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np

from ooc_fw.convert.readers import THREADS_NAME
from ooc_fw.data import converted
from ooc_fw.data.arrays import ReadArray, open_npy
from ooc_fw.data.encoded import hold_out
from ooc_fw.data.formats import COLUMNS, LABEL_NAMES, RECORD, TARGETS, put_text, put_texts
from ooc_fw.data.labels import are_targets, label_values, read_targets
from ooc_fw.data.rows import (
    AnyArray,
    CSRRows,
    Float64Array,
    Int32Array,
    Int64Array,
    Rows,
    values_of,
)
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import RowSource, iter_blocks
from ooc_fw.data.statistics import ColumnSums
from ooc_fw.data.views import ranges_of
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import atomic_path, flush_to_disk

FORMAT_VERSION = 1

CHUNK_BYTES = 2 << 20  # size of a chunk of any array
# A data set is written front to back and needs only the chunk at hand in its cache; the default of
# HDF5 is larger and fills up over the first million rows.
CHUNK_CACHE_BYTES = 2 * CHUNK_BYTES


@dataclass(frozen=True)
class Layout:
    """What a file holds, which is known before it is begun."""

    n_rows: int
    n_features: int
    n_stored: int  # upper limit of the stored values; used for sparse rows only
    sparse: bool  # whether /X is a CSR group
    source: str  # names of the inputs
    scaling: Scaling
    compression: str = "none"  # filter of the large data sets
    labelled: bool = True  # whether there are labels; new rows may have none yet
    shuffled: bool = False  # whether rows are in random order
    seed: int | None = None  # of the shuffle, if it is known
    # Words that the label values 0, 1, ... stand for; None where labels are numbers.
    label_names: Sequence[str] | None = None
    targets: bool = False  # whether labels are targets of a regression
    columns: Sequence[str] | None = None  # names of the features
    table: str | None = None  # how the columns of a table became the features, as JSON
    labels_as: Mapping[str, str] | None = None  # new label of each old one
    n_encoded: int = 0  # columns of categories that became features by the labels of these rows

    @property
    def n_bytes(self) -> int:
        """Size of the file without compression and statistics."""
        sparse_bytes = 8 * self.n_stored + 8 * self.n_rows
        values = sparse_bytes if self.sparse else 4 * self.n_rows * self.n_features
        return values + (16 + 4 * self.n_encoded) * self.n_rows


class OutputFile(h5py.File):  # type: ignore[misc]  # h5py carries no type hints
    """A new HDF5 file that raises errors of the disk when HDF5 can survive them.

    HDF5 tries to write the same data again when the file is closed and when the interpreter ends,
    and crashes there. So it is told that all writes succeed, and `check` and the end of the
    ``with`` statement raise the error.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._sink = _Sink(path)
        super().__init__(
            self._sink, "w", rdcc_nbytes=CHUNK_CACHE_BYTES, libver=converted.LIBRARY_VERSIONS
        )

    def check(self) -> None:
        """Raise the first error of the disk, if there was one."""
        if self._sink.failure is not None:
            raise self._sink.failure

    def close(self) -> None:
        """Write what is left and close the file; a second time does nothing."""
        super().close()
        self._sink.close()

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self.close()
        if kind is None:
            self.check()


class _Sink(io.FileIO):
    """The file object that HDF5 writes to; it remembers its first failure and continues."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, "w+b")
        self._path = os.fspath(path)
        self.failure: OSError | None = None

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, with zeros where nothing was written, as any HDF5 driver does."""
        view = memoryview(buffer).cast("B")
        view[:] = os.pread(self.fileno(), len(view), self.tell()).ljust(len(view), b"\0")
        return len(view)

    def write(self, data: Any) -> int:
        """Write all of `data` at the position, which HDF5 sets before every write."""
        view = memoryview(data).cast("B")
        n_bytes, offset = view.nbytes, self.tell()
        with self._remembering():
            while view and self.failure is None:
                count = os.pwrite(self.fileno(), view, offset)
                view, offset = view[count:], offset + count
        return n_bytes

    def truncate(self, size: int | None = None) -> int:
        with self._remembering():
            if self.failure is None:
                super().truncate(size)
        return size or 0

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = OSError(error.errno, error.strerror, self._path)


def filter_options(compression: str) -> dict[str, Any]:
    """Arguments of `create_dataset` for a compression; InputError if its plugin is missing."""
    if compression == "none":
        return {}
    if compression == "gzip":
        return {"compression": "gzip", "shuffle": True}
    try:
        import hdf5plugin
    except ModuleNotFoundError:
        raise InputError(
            f"compression {compression!r} needs a plugin: pip install 'ooc-fw[compression]', or "
            f"choose gzip"
        ) from None
    chosen = hdf5plugin.LZ4() if compression == "lz4" else hdf5plugin.Zstd()
    return {**chosen, "shuffle": True}


class _Appender:
    """Appends to a data set chunk by chunk, without HDF5's own buffers if there is no filter.

    Checksums of a chunk are computed in `pool` while it is written.
    """

    def __init__(self, dataset: h5py.Dataset, direct: bool, pool: ThreadPoolExecutor) -> None:
        self._dataset = dataset
        self._direct = direct
        self._pool = pool
        self._chunk = np.zeros(dataset.chunks, dtype=dataset.dtype)
        self._length = converted.stretch_length(self._chunk[0].nbytes)
        self._sums = [np.empty(0, dtype=np.uint32)]
        self._filled = 0
        self.n_written = 0  # elements in whole chunks

    def append(self, block: AnyArray) -> None:
        """Write elements below those written so far."""
        while len(block) > 0:
            taken = min(len(self._chunk) - self._filled, len(block))
            self._chunk[self._filled : self._filled + taken] = block[:taken]
            self._filled += taken
            if self._filled == len(self._chunk):
                self.flush()
            block = block[taken:]

    def flush(self) -> None:
        """Write the chunk being filled, in the shape of a whole one; it need not be full."""
        if not self._filled:
            return
        written = self._chunk[: self._filled]
        summing = self._pool.submit(converted.crc32s, written, self._length)
        if self._direct:
            corner = (self.n_written,) + (0,) * (written.ndim - 1)
            self._dataset.id.write_direct_chunk(corner, self._chunk)
        else:
            self._dataset[self.n_written : self.n_written + len(written)] = written
        self._sums.append(summing.result())
        self.n_written += len(written)
        self._filled = 0

    def checksums(self) -> converted.Checksums:
        return converted.Checksums(np.concatenate(self._sums), self._length)


class DatasetWriter:
    """Append rows to an open, empty HDF5 file; `finish` marks it complete."""

    def __init__(self, file: OutputFile, layout: Layout) -> None:
        self._file = file
        self._layout = layout
        self._filter = filter_options(layout.compression)
        self._n_stored = 0
        self._counts: Counter[float] = Counter()  # rows of each label, but of targets
        self.n_nonzero = 0  # values that were written
        self._sums = ColumnSums(layout.n_features)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=THREADS_NAME)
        self._parts: dict[str, _Appender] = {}
        n_rows, n_features = layout.n_rows, layout.n_features
        if layout.labelled:
            self._create("y", np.float64, n_rows)
        self._create("row", np.int64, n_rows)
        if layout.n_encoded:
            self._create("categories", np.int32, n_rows, layout.n_encoded)
        if not layout.sparse:
            self._create("X", np.float32, n_rows, n_features)
            return
        self._create("X/data", np.float32, layout.n_stored)
        self._create("X/indices", np.int32, layout.n_stored)
        self._create("X/indptr", np.int64, n_rows + 1)
        self._parts["X/indptr"].append(np.zeros(1, dtype=np.int64))
        # AnnData's encoding of a CSR matrix. Other tools that read it expect text of variable
        # length, which is never read here.
        file["X"].attrs["shape"] = np.array([n_rows, n_features], dtype=np.int64)
        file["X"].attrs["encoding-type"] = "csr_matrix"
        file["X"].attrs["encoding-version"] = "0.1.0"

    def _create(self, name: str, dtype: type, length: int, *width: int) -> None:
        row_bytes = max(1, np.dtype(dtype).itemsize * math.prod(width))
        stretch = converted.stretch_length(row_bytes)
        # About CHUNK_BYTES, a whole number of stretches.
        chunk = max(1, CHUNK_BYTES // (stretch * row_bytes)) * stretch
        dataset = self._file.create_dataset(
            name,
            (length, *width),
            dtype,
            maxshape=None if width else (None,),
            chunks=(min(chunk, max(1, length)), *width),
            **self._filter,
        )
        self._parts[name] = _Appender(dataset, not self._filter, self._pool)

    def append(
        self,
        rows: Rows,
        labels: Float64Array,
        row_ids: Int64Array,
        stored: Rows | None = None,
        cells: Int32Array | None = None,
    ) -> None:
        """Write rows below those written so far; OSError if the disk is full or failing.

        `stored` are the same rows in a form whose values are summed faster, and `cells` tell their
        categories (`ooc_fw.data.encoded`).
        """
        summed = rows if stored is None else stored
        self._sums.add(summed)
        self.n_nonzero += int(np.count_nonzero(values_of(summed)))
        values: dict[str, AnyArray] = {"row": row_ids}
        if self._layout.labelled:
            values["y"] = labels
            self._counts.update({} if self._layout.targets else count_labels(labels))
        if self._layout.n_encoded and cells is not None:
            values["categories"] = cells
        if isinstance(rows, CSRRows):
            values |= {"X/data": rows.data, "X/indices": rows.indices}
            values["X/indptr"] = rows.indptr[1:] + self._n_stored
            self._n_stored += len(rows.data)
        else:
            values["X"] = rows
        for name, block in values.items():
            self._parts[name].append(block)
        self._file.check()

    @property
    def class_counts(self) -> dict[Any, int]:
        """Rows of each label, a number or a word, in order."""
        words = self._layout.label_names
        counts = sorted(self._counts.items())
        return {label if words is None else words[int(label)]: count for label, count in counts}

    def finish(self) -> None:
        """Write attributes, statistics and checksums; the file is complete after this."""
        for part in self._parts.values():
            part.flush()
        self._pool.shutdown()
        layout = self._layout
        file = self._file
        if layout.sparse:
            # Fewer values than expected: scaling may have turned some into zeros.
            file["X/data"].resize((self._n_stored,))
            file["X/indices"].resize((self._n_stored,))
        attributes: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "n_rows": layout.n_rows,
            "n_features": layout.n_features,
            "n_classes": len(self._counts),
            "class_names": np.array(sorted(self._counts), np.float64),
            "class_counts": np.array([*self.class_counts.values()], np.int64),
            "shuffled": layout.shuffled,
            "mean_square_norm": self._sums.statistics.mean_square_norm,
        }
        if layout.targets:
            attributes[TARGETS] = True
        if layout.seed is not None:
            attributes["shuffle_seed"] = layout.seed
        file.attrs.update(attributes)
        put_text(file.attrs, "source", layout.source)
        put_text(file.attrs, "compression", layout.compression)
        if layout.columns is not None:
            put_texts(file.attrs, COLUMNS, layout.columns)
        if layout.table is not None:
            put_text(file.attrs, RECORD, layout.table)
        if layout.label_names is not None:
            put_texts(file["y"].attrs, LABEL_NAMES, layout.label_names)
        if layout.labels_as is not None and layout.labelled:
            pairs = ",".join(map("=".join, sorted(layout.labels_as.items())))
            put_text(file["y"].attrs, converted.LABELS_AS, pairs)
        file["mean"] = self._sums.statistics.mean
        layout.scaling.write(file)
        file.attrs["complete"] = 1
        sums = {name: part.checksums() for name, part in self._parts.items()}
        converted.write_checksums(file, sums)
        file.check()


def count_labels(labels: AnyArray) -> dict[Any, int]:
    """Rows of each label, sorted by label."""
    names, numbers = np.unique(labels, return_counts=True)
    return dict(zip(names.tolist(), numbers.tolist(), strict=True))


@dataclass(frozen=True)
class PartReport:
    """What one of the parts holds: rows of each label, in all, and where."""

    output: str
    n_rows: int
    class_counts: dict[Any, int]


def read_test_rows(path: str, source: RowSource) -> Int64Array:
    """Ranges of the rows that a file lists, counted from 0: text with a number a line, or .npy."""
    try:
        if path.endswith(".npy"):
            with closing(open_npy(path)) as array:
                numbers = array[: array.shape[0]]
        else:
            with warnings.catch_warnings(action="ignore"):  # of a file without numbers
                numbers = np.loadtxt(path, dtype=np.int64, ndmin=1)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{path} does not list row numbers ({error}); write one a line, counted from 0"
        ) from None
    rows, n_rows = np.unique(numbers), source.n_rows
    usable = numbers.ndim == 1 and numbers.dtype.kind in "iu" and 0 < len(rows) < n_rows
    if not usable or len(rows) < len(numbers) or rows[0] < 0 or rows[-1] >= n_rows:
        raise InputError(
            f"{path} must list some of the row numbers 0 to {n_rows - 1} of {source.name}, each "
            f"once, and not all of them"
        )
    return ranges_of(rows.astype(np.int64))


def split(
    source: RowSource,
    test_ranges: Int64Array,
    outputs: Sequence[str | os.PathLike[str]],
    compression: str = "none",
) -> list[PartReport]:
    """Write the rows outside `test_ranges` to the first of two files, those inside to the second.

    Rows keep their order, are numbered anew, and take along what is known of them. The files appear
    when both are written.
    """
    classes = None  # of labels that are not targets
    is_classified = source.has_labels and not are_targets(source)
    if is_classified:
        classes = label_values(source)
    elif source.has_labels:
        read_targets(source)  # all of which must be finite
    has_words = classes is not None and classes.dtype.kind not in "biuf"
    layout = Layout(
        n_rows=source.n_rows,
        n_features=source.n_features,
        n_stored=source.decoded_bytes // 8,  # no fewer than are stored
        sparse=source.sparse,
        source=os.path.basename(source.name),
        scaling=source.scaling or Scaling(),
        compression=compression,
        labelled=source.has_labels,
        shuffled=bool(source.shuffled),
        label_names=None if classes is None or not has_words else classes.tolist(),
        targets=source.has_labels and not is_classified,
        columns=source.columns,
    )
    reports: list[PartReport] = []
    with ExitStack() as stack:
        paths = [stack.enter_context(atomic_path(output)) for output in outputs]
        for part, path, output in zip(hold_out(source, test_ranges), paths, outputs, strict=True):
            with part, OutputFile(path) as file:
                # Features of the second part are not made of its own labels.
                known = None if reports else part.categories
                cells = None if known is None else known.cells
                n_encoded = 0 if cells is None else cells.shape[1]
                own = replace(layout, n_rows=part.n_rows, table=part.table, n_encoded=n_encoded)
                writer = DatasetWriter(file, own)
                _write_rows(part, writer, classes if has_words else None, cells)
                writer.finish()
            reports.append(PartReport(os.fspath(output), part.n_rows, writer.class_counts))
        for path in paths:
            flush_to_disk(path)  # all of them before one is renamed
    return reports


def _write_rows(
    part: RowSource, writer: DatasetWriter, words: AnyArray | None, cells: ReadArray | None
) -> None:
    """Write rows, and places in `words` for labels."""
    row_ids = np.argsort(np.argsort(part.row_ids(0, part.n_rows)))  # numbered anew
    for start, rows in iter_blocks(part, 0, part.n_rows):
        stop = start + len(rows)
        labels = part.labels(start, stop) if part.has_labels else np.zeros(len(rows))
        if words is not None:
            labels = np.searchsorted(words, labels)
        known = None if cells is None else cells[start:stop]
        writer.append(rows, labels.astype(np.float64), row_ids[start:stop], None, known)
