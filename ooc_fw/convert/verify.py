"""Whether a data file is still what was written: every byte of every array is read and compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

from ooc_fw.convert.readers import Progress, ordered_map
from ooc_fw.data import converted
from ooc_fw.data.arrays import Sliceable
from ooc_fw.data.converted import Checksums
from ooc_fw.data.formats import is_hdf5, reading
from ooc_fw.data.opening import open_source
from ooc_fw.data.sources import FileStamp
from ooc_fw.data.stores import close_file, open_file, open_hdf5
from ooc_fw.system.errors import DamageError, InputError

READ_BYTES = 4 << 20  # bytes that are read and compared at once
SHOWN = 20  # damaged places of an array that are reported one by one


@dataclass(frozen=True)
class ArrayReport:
    """What was found in one array."""

    name: str  # its name in the file
    n_bytes: int  # bytes of its values, before compression
    n_chunks: int  # chunks it is stored in
    n_damaged: int = 0  # stretches that could not be read or do not match their checksums
    damage: tuple[str, ...] = ()  # sentences about the first of them


@dataclass(frozen=True)
class VerifyReport:
    """What `verify_file` found."""

    path: str  # the file
    n_bytes: int  # its size
    arrays: tuple[ArrayReport, ...]  # in the order of reading

    @property
    def intact(self) -> bool:
        """Whether no damage was found."""
        return not any(array.n_damaged for array in self.arrays)


def verify_file(path: str | os.PathLike[str], *, progress: Progress | None = None) -> VerifyReport:
    """Read a whole converted file and compare it with the checksums in it.

    `progress` is called with (bytes done, bytes in all). DamageError is raised if the file cannot
    be opened, its header does not match its checksum, or it was changed while it was read;
    InputError if it is no file with rows, or has no checksums.
    """
    path = os.fspath(path)
    without = InputError(f"{path} has no checksums to compare with; ooc-fw convert writes them")
    if not os.path.isfile(path) or not is_hdf5(path):
        open_source(path).close()  # says what is wrong with it
        raise without
    file = open_file(path)
    with ExitStack() as stack:
        stack.callback(close_file, file)
        stack.enter_context(reading(path))
        stamp = FileStamp(path, file.id.get_vfd_handle())
        sums = converted.read_checksums(file) if converted.is_converted(file) else {}
        if not sums:
            raise without
        n_bytes = sum(file[name].nbytes for name in sums)
        arrays: list[ArrayReport] = []
        for name in sorted(sums):
            before = sum(array.n_bytes for array in arrays)

            def tell(done: int, before: int = before) -> None:
                if progress is not None:
                    progress(before + done, n_bytes)

            arrays.append(_compare(file[name], sums[name], tell))
        stamp.check()
    report = VerifyReport(path, os.path.getsize(path), tuple(arrays))
    if report.intact:
        open_source(path).close()  # checks that the arrays fit each other
    return report


def _compare(dataset: Any, sums: Checksums, tell: Callable[[int], None]) -> ArrayReport:
    """Compare one array, a few megabytes at a time, on several threads."""
    name = dataset.name.removeprefix("/")
    n_rows = len(dataset)
    n_chunks = -(-n_rows // (dataset.chunks or (max(1, n_rows),))[0])
    try:
        array = open_hdf5(dataset)
    except DamageError as error:
        return ArrayReport(name, dataset.nbytes, n_chunks, 1, (str(error),))
    row_bytes = max(1, dataset.nbytes // max(1, n_rows))
    # Whole stretches, about READ_BYTES of them.
    step = max(1, READ_BYTES // (sums.length * row_bytes)) * sums.length
    damage: list[str] = []
    n_damaged = 0
    with closing(array):
        checked = converted.CheckedSlices(array, sums, dataset.file.filename, name)

        def work(start: int) -> list[str]:
            return list(_damage(array, sums, checked, start, min(n_rows, start + step)))

        for part, sentences in enumerate(ordered_map(work, range(0, n_rows, step)), 1):
            n_damaged += len(sentences)
            damage += sentences[: SHOWN - len(damage)]
            tell(min(n_rows, part * step) * row_bytes)
    return ArrayReport(name, dataset.nbytes, n_chunks, n_damaged, tuple(damage))


def _damage(
    array: Sliceable, sums: Checksums, checked: converted.CheckedSlices, start: int, stop: int
) -> Iterator[str]:
    """Sentences about the damaged stretches of one part."""
    try:
        for stretch in sums.mismatches(array[start:stop], start):
            yield checked.describe(int(stretch))
    except DamageError as error:  # the part cannot be read: find the stretches, one by one
        if stop - start <= sums.length:
            yield checked.describe(start // sums.length, f"cannot be read ({error})")
            return
        for first in range(start, stop, sums.length):
            yield from _damage(array, sums, checked, first, min(stop, first + sums.length))
