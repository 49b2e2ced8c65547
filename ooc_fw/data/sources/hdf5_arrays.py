"""Parts of HDF5 data sets, read in the fastest way that their storage allows.

Uncompressed values are read straight from the file at the offsets that HDF5 reports. For a short
slice that takes a tenth of the time of a call through the library, threads do not wait for its
global lock, and a file that was cut short gives an error instead of zeros. Compressed, virtual and
other data sets are read through h5py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import h5py
import numpy as np

from ooc_fw.data.attributes import LABEL_NAMES, as_text, get_texts
from ooc_fw.data.rows import AnyArray
from ooc_fw.data.sources.base import Sliceable
from ooc_fw.data.sources.checksums import CheckedSlices, Checksums, Range
from ooc_fw.data.sources.decoded import DecodedChunks, equal_chunks
from ooc_fw.data.sources.flatfile import ChunkedFileArray
from ooc_fw.data.sources.opening import Node, check_filters, file_name, is_plain_file
from ooc_fw.data.sources.storage import check_storage
from ooc_fw.system.errors import DamageError, InputError

logger = logging.getLogger(__name__)

_LARGEST_BAND = 1 << 30
"""Decoded bytes up to which chunks that lie side by side are kept together."""

NO_SUMS: Mapping[str, Checksums] = {}
"""Checksums of a file that has none."""


class DatasetSlices:
    """Parts of a data set of one or two dimensions read through h5py, with its errors as sentences.

    Compressed chunks are decoded once and kept for the next part, up to `kept_bytes`. HDF5 itself
    keeps no chunk that is larger than its cache, and would decode it again for every part. If a
    `view` is given, another form of the same values, it is sliced in place of the data set.
    """

    def __init__(self, dataset: Node, view: Any = None) -> None:
        self._dataset = dataset
        self._view = dataset if view is None else view
        self._read: Callable[[int, int], AnyArray] = self._decode
        self.kept_bytes = 0
        if dataset.chunks is None or not dataset.id.get_create_plist().get_nfilters():
            return
        length = dataset.chunks[0]
        row_bytes = max(1, dataset.nbytes // max(1, len(dataset)))
        in_columns = dataset.chunks[1:] != dataset.shape[1:]
        if in_columns and length * row_bytes > _LARGEST_BAND:
            logger.warning(
                "%s keeps %d rows of a few columns in each chunk, all of which have to be decoded "
                "for every block of rows, which is slow; ooc-fw convert stores rows together",
                file_name(dataset),
                length,
            )
            return
        chunks = DecodedChunks(equal_chunks(len(dataset), length), self._decode, row_bytes)
        self._read, self.kept_bytes = chunks.read, chunks.kept_bytes

    def __len__(self) -> int:
        return int(self._dataset.shape[0])

    def __getitem__(self, key: slice) -> AnyArray:
        start, stop, _ = key.indices(len(self))
        return self._read(start, max(start, stop))

    def _decode(self, start: int, stop: int) -> AnyArray:
        try:
            return np.asarray(self._view[start:stop])
        except OSError as error:
            raise DamageError(
                f"{file_name(self._dataset)} cannot be read ({error}); "
                f"the file is damaged, write it again"
            ) from error


class WordLabels:
    """Labels returned as words: text, or codes 0, 1, ... of the words in `names`."""

    def __init__(self, labels: Sliceable, names: list[str] | None, path: str) -> None:
        self._labels = labels
        self._names = None if names is None else np.array(names, dtype=np.str_)
        self._path = path

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, key: slice) -> AnyArray:
        labels = np.asarray(self._labels[key])
        if self._names is None:
            return np.array([as_text(label) for label in labels.tolist()], dtype=np.str_)
        places = labels.astype(np.int64)
        if np.any(places != labels) or np.any((places < 0) | (places >= len(self._names))):
            raise DamageError(
                f"{self._path} has labels that are no whole numbers from 0 to "
                f"{len(self._names) - 1}, for which it has {LABEL_NAMES}; write it again"
            )
        return self._names[places]


def open_labels(dataset: Node, sums: Mapping[str, Checksums] = NO_SUMS) -> Sliceable:
    """Labels in an HDF5 data set of one dimension, compared with the checksums of "y" if any.

    Numbers are returned as stored; codes with the attribute `LABEL_NAMES`, and text, as words.
    """
    if not isinstance(dataset, h5py.Dataset) or len(dataset.shape or ()) != 1:
        raise InputError(
            f"{file_name(dataset)}: the labels {dataset.name!r} must be a data set of one "
            f"dimension; name another (--y-name, or y_name= in Python)"
        )
    is_text = h5py.check_string_dtype(dataset.dtype) is not None
    if dataset.dtype.kind not in "biuf" and not is_text:
        raise InputError(
            f"{file_name(dataset)}: the labels {dataset.name!r} are of type {dataset.dtype}, but "
            f"must be numbers or text; name another (--y-name, or y_name= in Python)"
        )
    check_filters(dataset)
    check_storage(dataset)
    names = get_texts(dataset.attrs, LABEL_NAMES)
    labels = checked(DatasetSlices(dataset), dataset, "y", sums)
    return WordLabels(labels, names, file_name(dataset)) if is_text or names is not None else labels


def open_array(dataset: Node) -> ChunkedFileArray | DatasetSlices:
    """Fastest way to read parts of a data set; InputError when a part of it is missing."""
    check_storage(dataset)
    return find_in_file(dataset) or DatasetSlices(dataset)


def checked(
    array: Sliceable,
    dataset: Node,
    name: str,
    sums: Mapping[str, Checksums],
    rows_of: Callable[[int, int], Range] | None = None,
) -> Sliceable:
    """`array`, which compares what it reads with the checksums of `name`, if there are any."""
    if name not in sums:
        return array
    return CheckedSlices(
        array,
        sums[name],
        path=file_name(dataset),
        name=name,
        chunk_length=chunk_length(dataset),
        rows_of=rows_of,
    )


def chunk_length(dataset: Node) -> int:
    """Rows or elements of a chunk; all of them where there are no chunks."""
    return max(1, int((dataset.chunks or dataset.shape)[0]))


def find_in_file(dataset: Node) -> ChunkedFileArray | None:
    """Where the values of `dataset` lie on disk.

    None when they are compressed, scattered or of a type that numpy cannot read as it is, or when
    somebody may still be writing to the file.
    """
    properties, shape, dtype = dataset.id.get_create_plist(), dataset.shape, dataset.dtype
    if (
        not is_plain_file(dataset.file)
        or dataset.file.userblock_size
        or dtype.kind not in "biuf"
        or not h5py.h5t.py_create(dtype, logical=True).equal(dataset.id.get_type())
        or properties.get_nfilters()
        or properties.get_external_count()
        or 0 in shape
    ):
        return None
    layout = properties.get_layout()
    if layout == h5py.h5d.CONTIGUOUS and (offset := dataset.id.get_offset()) is not None:
        length, offsets = shape[0], np.array([offset], dtype=np.int64)
    elif layout == h5py.h5d.CHUNKED and dataset.chunks[1:] == shape[1:]:
        length = dataset.chunks[0]
        offsets = np.full(-(-shape[0] // length), -1, dtype=np.int64)  # -1: never written

        def note(chunk: Any) -> None:
            offsets[chunk.chunk_offset[0] // length] = chunk.byte_offset

        dataset.id.chunk_iter(note)
    else:
        return None
    if (offsets < 0).any():
        return None
    return ChunkedFileArray(dataset.file.filename, shape, dtype, offsets=offsets, chunk_rows=length)
