"""Parts of HDF5 data sets, read in the fastest way that their storage allows.

Uncompressed values are read straight from the file at the offsets that HDF5 reports. For a short
slice that takes a tenth of the time of a call through the library, threads do not wait for its
global lock, and a file that was cut short gives an error instead of zeros.
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
from ooc_fw.data.sources.chunked import DecodedChunks
from ooc_fw.data.sources.flatfile import FileArray
from ooc_fw.data.sources.opening import Node, check_filters, file_name, is_plain_file
from ooc_fw.data.sources.storage import check_storage
from ooc_fw.system.errors import DamageError, InputError

logger = logging.getLogger(__name__)

_LARGEST_BAND = 1 << 30  # decoded bytes up to which chunks that lie side by side are kept together
NO_SUMS: Mapping[str, Checksums] = {}  # checksums of a file that has none


class DatasetSlices:
    """Parts of a data set of one or two dimensions read through h5py, with its errors as sentences.

    Compressed chunks are decoded once and kept for the next part, up to `kept_bytes`. HDF5 itself
    keeps no chunk that is larger than its cache, and would decode it again for every part.
    """

    def __init__(self, dataset: Node) -> None:
        self._dataset, self.shape, self.dtype = dataset, dataset.shape, dataset.dtype
        self._chunks: DecodedChunks | None = None
        self.kept_bytes = 0
        if dataset.chunks is None or not dataset.id.get_create_plist().get_nfilters():
            return
        length = dataset.chunks[0]
        band_bytes = length * dataset.nbytes // max(1, len(dataset))
        if dataset.chunks[1:] != dataset.shape[1:] and band_bytes > _LARGEST_BAND:
            logger.warning(
                "%s keeps %d rows of a few columns in each chunk, all of which have to be decoded "
                "for every block of rows, which is slow; ooc-fw convert stores rows together",
                file_name(dataset),
                length,
            )
            return
        self._chunks = DecodedChunks(self.shape, self.dtype, self._decode, length)
        self.kept_bytes = self._chunks.kept_bytes

    def __len__(self) -> int:
        return int(self._dataset.shape[0])

    def __getitem__(self, key: slice) -> AnyArray:
        if self._chunks is not None:
            return self._chunks[key]
        start, stop, _ = key.indices(len(self))
        return self._decode(start, max(start, stop))

    def _decode(self, start: int, stop: int) -> AnyArray:
        try:
            return np.asarray(self._dataset[start:stop])
        except OSError as error:
            raise DamageError(
                f"{file_name(self._dataset)} cannot be read ({error}); "
                f"the file is damaged, write it again"
            ) from error

    def close(self) -> None:
        """Nothing to close: the file belongs to whoever opened it."""


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
    what = f"{file_name(dataset)}: the labels {dataset.name!r}"
    other = "name another (--y-name, or y_name= in Python)"
    if not isinstance(dataset, h5py.Dataset) or len(dataset.shape or ()) != 1:
        raise InputError(f"{what} must be a data set of one dimension; {other}")
    is_text = h5py.check_string_dtype(dataset.dtype) is not None
    if dataset.dtype.kind not in "biuf" and not is_text:
        raise InputError(
            f"{what} are of type {dataset.dtype}, but must be numbers or text; {other}"
        )
    check_filters(dataset)
    check_storage(dataset)
    names = get_texts(dataset.attrs, LABEL_NAMES)
    labels = checked(DatasetSlices(dataset), dataset, "y", sums)
    return WordLabels(labels, names, file_name(dataset)) if is_text or names is not None else labels


def open_array(dataset: Node) -> FileArray | DatasetSlices:
    """Fastest way to read parts of a data set; InputError when a part of it is missing."""
    check_storage(dataset)
    return find_in_file(dataset) or DatasetSlices(dataset)


def checked(
    array: Sliceable,
    dataset: Node,
    name: str,
    sums: Mapping[str, Checksums],
    rows_of: Callable[[int, int], Range] | None = None,
) -> Any:
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


def find_in_file(dataset: Node) -> FileArray | None:
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
    return FileArray(dataset.file.filename, shape, dtype, offsets, chunk_rows=length)
