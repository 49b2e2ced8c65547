"""Files of `ooc-fw convert`, and the checksums of their arrays.

Every array is cut into stretches of about `STRETCH_BYTES`; a chunk has a whole number of them. The
file stores the CRC32 of each stretch, computed from its values before compression, so that a reader
need not know how they are stored. HDF5 itself has checksums for attributes, types and sizes.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from io import BytesIO
from typing import Any, NamedTuple, TypeAlias

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.data.arrays import ReadArray
from ooc_fw.data.formats import open_bytes
from ooc_fw.data.rows import AnyArray
from ooc_fw.system.errors import DamageError, InputError

# Newest layout of converted files that this version reads. Since 2, rows may be divided by their
# norms, and rows in another type than float32 have yet to be scaled.
FORMAT_VERSION = 2
# Bytes of a stretch. It is short enough that a read of a few hundred kilobytes is checked at little
# extra cost, and long enough that checksums take only a sixteen-thousandth of the file.
STRETCH_BYTES = 64 << 10
_SEAL_BYTES = 4  # bytes of the checksum at the end of a model; HDF5 ignores what follows its own
# Oldest and newest HDF5 format for the structures of a file; older formats have no checksums.
LIBRARY_VERSIONS = ("v110", "v110")
# Arrays with one number per column. Every opening of a file checks them.
SMALL_ARRAYS = ("mean", "scaling/offset", "scaling/factor")
UInt32Array: TypeAlias = npt.NDArray[np.uint32]


def is_converted(root: Any) -> bool:
    """Whether `ooc-fw convert` wrote a file, which is trusted as far as its checksums match.

    InputError is raised if it is unfinished or too new.
    """
    if not isinstance(root, h5py.Group) or not {"format_version", "n_features"} <= {*root.attrs}:
        return False
    path = root.file.filename
    version = int(root.attrs["format_version"])
    if version > FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {version}, newer than {FORMAT_VERSION}; update ooc-fw"
        )
    if "complete" not in root.attrs or "checksums" not in {*root}:  # damaged ones are there, too
        raise InputError(f"{path} was not finished, or has no checksums; convert it again")
    return True


def stretch_length(row_bytes: int) -> int:
    """Number of rows or elements in a stretch, if each of them has `row_bytes`."""
    return max(1, STRETCH_BYTES // row_bytes)


def crc32s(block: AnyArray, length: int) -> UInt32Array:
    """CRC32 of every `length` rows of a block; the last stretch may be shorter."""
    starts = range(0, len(block), length)
    sums = [zlib.crc32(np.ascontiguousarray(block[i : i + length]).data) for i in starts]
    return np.array(sums, dtype=np.uint32)


class Checksums(NamedTuple):
    """Checksums of an array: one CRC32 for each stretch of `length` rows or elements."""

    values: UInt32Array
    length: int


Sums: TypeAlias = Mapping[str, Checksums]  # by the name of the array; {} if a file has none


def checked(array: Any, path: str, name: str, sums: Sums) -> Any:
    """`array`, or a form of it that checks what it reads, if there are checksums for `name`."""
    return CheckedSlices(array, sums[name], path, name) if name in sums else array


class CheckedSlices(ReadArray):
    """An array in a file that checks what it reads if this costs little.

    A read at least as long as a stretch, or of whole stretches, is extended to the borders of its
    first and last stretch. It returns its part only if all these stretches match their checksums. A
    reading of the data therefore never uses a changed bit. A shorter read is not checked, because
    reading and summing 64 KiB would cost many times as much as the few rows.
    """

    def __init__(self, array: Any, checksums: Checksums, path: str, name: str) -> None:
        super().__init__(array.shape, array.dtype)
        self.chunk_rows = getattr(array, "chunk_rows", None)
        self._array = array
        self._checksums = checksums
        self._path = path
        self._name = name

    def _read(self, start: int, stop: int) -> AnyArray:
        """Elements or rows ``start:stop`` as stored; DamageError if a stretch has changed."""
        length = self._checksums.length
        first = start // length * length
        last = min(len(self), -(-stop // length) * length)
        if stop <= start or (stop - start < length and (first, last) != (start, stop)):
            return self._array[start:stop]  # type: ignore[no-any-return]
        block = self._array[first:last]
        stored = self._checksums.values[first // length : -(-last // length)]
        for place in np.flatnonzero(crc32s(block, length) != stored)[:1].tolist():
            raise DamageError(self.describe(first // length + place))
        return block[start - first : stop - first]  # type: ignore[no-any-return]

    def describe(self, stretch: int, defect: str = "do not match their checksum") -> str:
        """Message about a stretch that cannot be used."""
        first = stretch * self._checksums.length
        last = min(len(self), first + self._checksums.length) - 1
        unit = "values" if "/" in self._name else "rows"  # such as X/data, or X
        return (
            f"{self._path} is damaged: {self._name}, {unit} {first} to {last} {defect}; restore a "
            f"copy or convert the data again"
        )


def write_checksums(root: Any, sums: Sums) -> None:
    """Store the checksums of a complete file: `sums` of its large arrays, and the small ones."""
    small = {
        name: Checksums(crc32s(root[name][...], len(root[name])), len(root[name]))
        for name in SMALL_ARRAYS
        if name in root
    }
    for name, checksums in {**sums, **small}.items():
        stored = root.create_dataset(f"checksums/{name}", data=checksums.values)
        stored.attrs["length"] = checksums.length


def read_checksums(root: Any) -> dict[str, Checksums]:
    """Checksums of a converted file by the name of the array."""
    sums: dict[str, Checksums] = {}

    def read(name: str, stored: Any) -> None:
        if not isinstance(stored, h5py.Dataset):
            return
        sums[name] = Checksums(stored[...], int(stored.attrs["length"]))
        if name in SMALL_ARRAYS:
            checked(root[name], root.file.filename, name, sums)[:]

    root["checksums"].visititems(read)
    return sums


def seal(content: BytesIO) -> None:
    """Append a checksum to the content of a file."""
    total = zlib.crc32(content.getbuffer())
    content.seek(0, os.SEEK_END)
    content.write(total.to_bytes(_SEAL_BYTES, "little"))


def check_seal(path: str) -> None:
    """Raise DamageError unless a file ends with the checksum of all that comes before."""
    total = 0
    with open_bytes(path) as file:
        n_left = os.path.getsize(path) - _SEAL_BYTES
        while n_left > 0 and (part := file.read(min(n_left, STRETCH_BYTES))):
            total = zlib.crc32(part, total)
            n_left -= len(part)
        if file.read() != total.to_bytes(_SEAL_BYTES, "little"):
            raise DamageError("it does not match its checksum; restore a copy or train again")
