"""Check that a data file is still as it was written: read and compare every byte of its arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

from ooc_fw.conversion.readers import Progress, ordered_map
from ooc_fw.data import converted
from ooc_fw.data.arrays import open_hdf5
from ooc_fw.data.containers import close_file, open_file
from ooc_fw.data.converted import CheckedSlices, Checksums
from ooc_fw.data.formats import detect_format, reading
from ooc_fw.data.opening import open_dataset
from ooc_fw.data.sources import check_stamp, stamp_of
from ooc_fw.system.errors import InputError

READ_BYTES = 4 << 20  # bytes that are read and compared at once; only their first damage is told


def verify_file(path: str | os.PathLike[str], *, progress: Progress | None = None) -> list[str]:
    """Read a whole converted file and compare it with the checksums in it.

    Returns sentences about the damage, and none if the file is intact. `progress` is called with
    (bytes done, bytes in all). DamageError is raised if the file cannot be opened or its header
    does not match its checksum. InputError is raised if the file has no checksums, or changes while
    it is read.
    """
    path = os.fspath(path)
    found: list[str] = []
    with ExitStack() as stack:
        file: Any = open_file(path) if detect_format(path) == "hdf5" else open_dataset(path)
        stack.callback(close_file, file)
        stack.enter_context(reading(path))
        if not converted.is_converted(file):
            raise InputError(f"{path} has no checksums to compare with; ooc-fw convert writes them")
        open_dataset(path).close()  # checks that the arrays fit each other
        stamp = stamp_of(file.id.get_vfd_handle())
        sums = converted.read_checksums(file)
        n_bytes = sum(file[name].nbytes for name in sums)
        n_done = 0
        for name in sorted(sums):
            for n_read, sentence in _compare(file[name], path, sums[name]):
                n_done += n_read
                found += filter(None, [sentence])
                if progress is not None:
                    progress(n_done, n_bytes)
        check_stamp(path, stamp)
    return found


def _compare(dataset: Any, path: str, sums: Checksums) -> Iterator[tuple[int, str]]:
    """Yield, for each part of an array, its bytes and a sentence about its damage ("" if none)."""
    n_rows = len(dataset)
    row_bytes = dataset.nbytes // max(1, n_rows)
    step = max(1, READ_BYTES // (sums.length * max(1, row_bytes))) * sums.length  # whole stretches
    with closing(open_hdf5(dataset)) as array:
        checked = CheckedSlices(array, sums, path, dataset.name.removeprefix("/"))

        def work(start: int) -> tuple[int, str]:
            n_read = (min(n_rows, start + step) - start) * row_bytes
            try:
                checked[start : start + step]
            except InputError as error:
                if str(error).startswith(f"{path} is damaged: "):
                    return n_read, str(error)
                return n_read, checked.describe(start // sums.length, f"cannot be read ({error})")
            return n_read, ""

        yield from ordered_map(work, range(0, n_rows, step))
