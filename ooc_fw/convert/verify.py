"""Is a data file still what was written? Every byte of every array is read and compared.

Owns the order of the checks and what is reported. What a checksum covers is
`ooc_fw.data.sources.checksums`; how files are read is `ooc_fw.data.sources`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ooc_fw.convert.pipeline import default_threads, ordered_map
from ooc_fw.data.rows import Int64Array
from ooc_fw.data.sources import open_source
from ooc_fw.data.sources.base import Sliceable, iter_blocks
from ooc_fw.data.sources.checksums import (
    CheckedSlices,
    Checksums,
    Range,
    read_checksums,
)
from ooc_fw.data.sources.hdf5 import is_converted, rows_of_pointers, rows_of_values
from ooc_fw.data.sources.hdf5_arrays import DatasetSlices, chunk_length, open_array
from ooc_fw.data.sources.opening import check_filters, close_file, open_file, structure_errors
from ooc_fw.data.sources.stamp import FileStamp
from ooc_fw.system.errors import DamageError, InputError

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

READ_BYTES = 4 << 20
"""About as much is read and compared at once."""

LABELS = 1 << 20
"""Labels read at once from a file without checksums."""

SHOWN = 20
"""Damaged places of an array that are reported one by one."""


@dataclass(frozen=True)
class ArrayReport:
    """What was found of one array.

    Parameters
    ----------
    name : str
        Its name in the file.
    n_bytes : int
        Bytes of its values, before compression.
    n_chunks : int
        Chunks it is stored in.
    n_damaged : int
        Stretches that could not be read or do not match their checksums.
    damage : tuple of str
        Sentences about the first of them.
    """

    name: str
    n_bytes: int
    n_chunks: int
    n_damaged: int
    damage: tuple[str, ...]


@dataclass(frozen=True)
class VerifyReport:
    """What `verify_file` found.

    Parameters
    ----------
    path : str
        The file.
    n_bytes : int
        Its size.
    has_checksums : bool
        Whether there was something to compare with. Without it a file can only be found readable.
    arrays : tuple of ArrayReport
        What was read whole, in the order of reading.
    """

    path: str
    n_bytes: int
    has_checksums: bool
    arrays: tuple[ArrayReport, ...]

    @property
    def intact(self) -> bool:
        """Whether no damage was found."""
        return not any(array.n_damaged for array in self.arrays)


def verify_file(
    path: str | os.PathLike[str],
    *,
    x_name: str = "X",
    y_name: str = "y",
    progress: Progress | None = None,
) -> VerifyReport:
    """Read a whole HDF5 data file and compare it with the checksums in it.

    Parameters
    ----------
    path : str or PathLike
        File of ``ooc-fw convert``, or of another tool. The latter has no checksums, nor have files
        of older versions: their rows and labels are read, which finds values that are not finite,
        parts that are missing and, in compressed files, most changes, but not a changed number.
    x_name, y_name : str
        Names of rows and labels in a file of another tool.
    progress : callable or None
        Called now and then with (bytes done, bytes in all).

    Returns
    -------
    VerifyReport

    Raises
    ------
    DamageError
        The file cannot be opened, its header does not match its checksum, or it was changed while
        it was read.
    InputError
        There is no such file, it is not HDF5, or holds no rows.
    """
    path = os.fspath(path)
    _require_hdf5(path, x_name, y_name)
    file = open_file(path)
    with ExitStack() as stack:
        stack.callback(close_file, file)
        stack.enter_context(structure_errors(path))
        stamp = FileStamp(path, file.id.get_vfd_handle())
        sums = read_checksums(file) if is_converted(file) else {}
        if sums:
            arrays = _compare(file, sums, _Meter(progress, file, sums))
        else:
            arrays = _read_all(path, x_name, y_name, progress)
        stamp.check()
        report = VerifyReport(path, os.path.getsize(path), bool(sums), arrays)
    if report.intact and sums:
        open_source(path).close()  # arrays that fit each other: nothing else can be wrong with it
    return report


def _require_hdf5(path: str, x_name: str, y_name: str) -> None:
    """Let `open_source` word what is wrong with a file that is not HDF5."""
    import h5py

    if not os.path.isfile(path) or not h5py.is_hdf5(path):
        open_source(path, x_name=x_name, y_name=y_name).close()
        raise InputError(f"{path} is a .npy array, which has no checksums; nothing to compare with")


class _Meter:
    """Turns bytes compared into calls of a progress function."""

    def __init__(self, progress: Progress | None, root: Any, sums: dict[str, Checksums]) -> None:
        self._progress = progress
        self._total = sum(root[name].nbytes for name in sums)
        self._done = 0

    def add(self, n_bytes: int) -> None:
        self._done += n_bytes
        if self._progress is not None:
            self._progress(self._done, self._total)


def _compare(root: Any, sums: dict[str, Checksums], meter: _Meter) -> tuple[ArrayReport, ...]:
    """Compare all arrays of a converted file with their checksums."""
    reports: list[ArrayReport] = []
    indptr: Int64Array | None = None
    # The row pointers first: they say to which rows damaged values belong.
    for name in sorted(sums, key=lambda name: (name != "X/indptr", name)):
        rows_of: Callable[[int, int], Range] | None = None
        if name == "X/indptr":
            rows_of = rows_of_pointers
        elif name in ("X/data", "X/indices") and indptr is not None:
            rows_of = _rows_of(indptr)
        report = _compare_array(root, name, sums[name], rows_of, meter)
        if name == "X/indptr" and not report.n_damaged:
            indptr = np.asarray(root[name][...])
        reports.append(report)
    return tuple(reports)


def _rows_of(indptr: Int64Array) -> Callable[[int, int], Range]:
    return lambda first, stop: rows_of_values(indptr, first, stop)


def _compare_array(
    root: Any,
    name: str,
    sums: Checksums,
    rows_of: Callable[[int, int], Range] | None,
    meter: _Meter,
) -> ArrayReport:
    """Compare one array, a few megabytes at a time, on several threads."""
    dataset = root[name]
    path = str(root.file.filename)
    row_bytes = dataset.nbytes // max(1, len(dataset))
    damage: list[str] = []
    n_damaged = 0
    check_filters(dataset)
    with ExitStack() as stack:
        try:
            array = open_array(dataset)
        except DamageError as error:
            return ArrayReport(name, dataset.nbytes, _chunks(dataset), 1, (str(error),))
        if not isinstance(array, DatasetSlices):
            stack.enter_context(closing(array))
        checked = CheckedSlices(
            array,
            sums,
            path=path,
            name=name,
            chunk_length=chunk_length(dataset),
            rows_of=rows_of,
            in_rows=rows_of is not None or name not in ("X/data", "X/indices"),
        )

        def work(part: Range) -> tuple[int, list[str]]:
            return (part[1] - part[0]) * row_bytes, list(_damage(array, sums, checked, part))

        parts = _parts(len(dataset), sums.length, row_bytes)
        for n_bytes, found in ordered_map(work, parts, threads=default_threads()):
            n_damaged += len(found)
            damage += found[: SHOWN - len(damage)]
            meter.add(n_bytes)
    return ArrayReport(name, dataset.nbytes, _chunks(dataset), n_damaged, tuple(damage))


def _chunks(dataset: Any) -> int:
    return -(-len(dataset) // chunk_length(dataset))


def _parts(n_rows: int, length: int, row_bytes: int) -> Iterator[Range]:
    """Ranges of whole stretches, about READ_BYTES each."""
    step = max(1, READ_BYTES // (length * max(1, row_bytes))) * length
    for start in range(0, n_rows, step):
        yield start, min(n_rows, start + step)


def _damage(
    array: Sliceable, sums: Checksums, checked: CheckedSlices, part: Range
) -> Iterator[str]:
    """Sentences about the damaged stretches of one part."""
    try:
        for stretch in sums.mismatches(array[part[0] : part[1]], part[0]):
            yield checked.describe(int(stretch))
    except DamageError as error:  # that cannot be read: which stretch it is, one by one
        if part[1] - part[0] <= sums.length:
            yield f"{checked.describe(part[0] // sums.length)} ({error})"
            return
        for start in range(part[0], part[1], sums.length):
            yield from _damage(array, sums, checked, (start, min(part[1], start + sums.length)))


def _read_all(
    path: str, x_name: str, y_name: str, progress: Progress | None
) -> tuple[ArrayReport, ...]:
    """Read rows and labels of a file without checksums; their own checks raise InputError."""
    reports = []
    with open_source(path, x_name=x_name, y_name=y_name) as source:
        n_bytes = 0
        for start, rows in iter_blocks(source, 0, source.n_rows, READ_BYTES):
            n_bytes = source.bytes_read
            if progress is not None:
                progress(
                    source.decoded_bytes * (start + len(rows)) // source.n_rows,
                    source.decoded_bytes,
                )
        chunks = -(-source.n_rows // source.chunk_rows)
        reports.append(ArrayReport(x_name, n_bytes, chunks, 0, ()))
        if source.has_labels:
            n_bytes = sum(
                source.labels(start, min(source.n_rows, start + LABELS)).nbytes
                for start in range(0, source.n_rows, LABELS)
            )
            reports.append(ArrayReport(y_name, n_bytes, 1, 0, ()))
    return tuple(reports)
