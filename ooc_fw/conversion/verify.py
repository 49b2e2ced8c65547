"""Check that a data file is still as it was written: read and compare every byte of its arrays."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from typing import Any

from ooc_fw.conversion.readers import Progress
from ooc_fw.data import converted
from ooc_fw.data.arrays import open_hdf5
from ooc_fw.data.containers import close_file, open_file
from ooc_fw.data.converted import CheckedSlices
from ooc_fw.data.formats import detect_format, reading
from ooc_fw.data.opening import open_dataset
from ooc_fw.data.sources import check_stamp, stamp_of
from ooc_fw.system.errors import InputError

READ_BYTES = 4 << 20  # bytes that are read and compared at once


def verify_file(path: str | os.PathLike[str], progress: Progress = lambda *_: None) -> None:
    """Read a whole converted file and compare it with the checksums in it.

    `progress` is called with (bytes done, bytes in all). DamageError names the first place where
    the file is damaged. InputError is raised if the file has no checksums, or changes while it is
    read.
    """
    path = os.fspath(path)
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
        for name, known in sorted(sums.items()):
            row_bytes = max(1, file[name].nbytes // max(1, len(file[name])))
            step = max(1, READ_BYTES // (known.length * row_bytes)) * known.length
            stored = stack.enter_context(closing(open_hdf5(file[name])))
            array = CheckedSlices(stored, known, path, name)
            for start in range(0, len(array), step):
                n_done += len(array[start : start + step]) * row_bytes
                progress(n_done, n_bytes)
        check_stamp(path, stamp)
