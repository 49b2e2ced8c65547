"""The HDF5 layout of a training file, written front to back.

Owns names, chunk shapes, filters and attributes. Is told the sizes beforehand; decides nothing
about the values. `ooc_fw.sources` reads what is written here.
"""

from __future__ import annotations

import os
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.errors import InputError
from ooc_fw.rows import CSRRows, Float64Array, Int64Array, Rows
from ooc_fw.scaling import Scaling

FORMAT_VERSION = 1
CHUNK_BYTES = 2 << 20
CHUNK_CACHE_BYTES = 2 * CHUNK_BYTES
"""Cache of each data set: it is written front to back, so the chunk begun is all it needs. The
default of HDF5 is larger and fills up over the first million rows."""
COMPRESSIONS = ("none", "gzip", "lz4", "zstd")


def create_file(path: str | os.PathLike[str]) -> h5py.File:
    """Create an HDF5 file for a `DatasetWriter`."""
    return h5py.File(path, "w", rdcc_nbytes=CHUNK_CACHE_BYTES)


def chunk_rows(n_features: int) -> int:
    """Rows of a dense chunk of about CHUNK_BYTES."""
    return max(1, CHUNK_BYTES // (4 * max(1, n_features)))


def output_bytes(n_rows: int, n_features: int, n_stored: int, *, sparse: bool) -> int:
    """Size of the file without compression, statistics left out."""
    values = 8 * n_stored + 8 * n_rows if sparse else 4 * n_rows * n_features
    return values + 16 * n_rows


def filter_options(compression: str) -> dict[str, Any]:
    """Arguments of `h5py.Group.create_dataset` for a compression by name.

    Raises
    ------
    InputError
        For an unknown name, or when the plugin is not installed.
    """
    if compression not in COMPRESSIONS:
        raise InputError(
            f"compression must be one of {', '.join(COMPRESSIONS)}, not {compression!r}"
        )
    if compression == "none":
        return {}
    if compression == "gzip":
        return {"compression": "gzip", "shuffle": True}
    try:
        import hdf5plugin
    except ImportError:
        raise InputError(
            f"compression {compression!r} needs a plugin: pip install 'ooc-fw[compression]', "
            "or choose gzip"
        ) from None
    chosen = hdf5plugin.LZ4() if compression == "lz4" else hdf5plugin.Zstd()
    return {**chosen, "shuffle": True}


class ChunkAppender:
    """Append to a data set chunk by chunk, past HDF5's own buffers where nothing is compressed.

    Parameters
    ----------
    dataset : h5py.Dataset
        Chunked along its first axis only.
    direct : bool
        Whether a chunk is stored as it is, without a filter.
    """

    def __init__(self, dataset: h5py.Dataset, direct: bool) -> None:
        self._dataset = dataset
        self._direct = direct
        self._chunk = np.zeros(dataset.chunks, dtype=dataset.dtype)
        self._start = 0  # of the chunk being filled
        self._filled = 0

    def append(self, block: npt.NDArray[Any]) -> None:
        """Write elements below those written so far."""
        while len(block) > 0:
            taken = min(len(self._chunk) - self._filled, len(block))
            self._chunk[self._filled : self._filled + taken] = block[:taken]
            self._filled += taken
            block = block[taken:]
            if self._filled == len(self._chunk):
                self._write()

    def flush(self) -> None:
        """Write the last chunk, which need not be full."""
        if self._filled > 0:
            self._write()

    def _write(self) -> None:
        if self._direct:
            corner = (self._start,) + (0,) * (self._chunk.ndim - 1)
            self._dataset.id.write_direct_chunk(corner, self._chunk)
        else:
            stop = self._start + self._filled
            self._dataset[self._start : stop] = self._chunk[: self._filled]
        self._start += self._filled
        self._filled = 0


class DatasetWriter:
    """Append rows to an open, empty HDF5 file; `finish` marks it complete.

    Parameters
    ----------
    file : h5py.File
        Open for writing.
    n_rows, n_features : int
        Final size.
    n_stored : int
        Stored values, at most; counts only for sparse rows.
    sparse : bool
        Whether /X becomes a CSR group.
    compression : {"none", "gzip", "lz4", "zstd"}
        Filter of the large data sets.
    """

    def __init__(
        self,
        file: h5py.File,
        n_rows: int,
        n_features: int,
        n_stored: int,
        *,
        sparse: bool,
        compression: str,
    ) -> None:
        self._file = file
        self._n_features = n_features
        self._compression = compression
        self._filter = filter_options(compression)
        self._n_rows = n_rows
        self._row = 0
        self._stored = 0
        self._parts = {
            "y": self._create("y", n_rows, np.float64),
            "row": self._create("row", n_rows, np.int64),
        }
        if sparse:
            for name, length, dtype in (
                ("X/data", n_stored, np.float32),
                ("X/indices", n_stored, np.int32),
                ("X/indptr", n_rows + 1, np.int64),
            ):
                self._parts[name] = self._create(name, length, dtype)
            self._parts["X/indptr"].append(np.zeros(1, dtype=np.int64))
            # AnnData's encoding of a CSR matrix, which other tools read too.
            file["X"].attrs["shape"] = np.array([n_rows, n_features], dtype=np.int64)
            file["X"].attrs["encoding-type"] = "csr_matrix"
            file["X"].attrs["encoding-version"] = "0.1.0"
        else:
            dense = file.create_dataset(
                "X",
                (n_rows, n_features),
                np.float32,
                chunks=(min(chunk_rows(n_features), n_rows), n_features),
                **self._filter,
            )
            self._parts["X"] = ChunkAppender(dense, direct=not self._filter)

    def _create(self, name: str, length: int, dtype: type) -> ChunkAppender:
        chunk = min(CHUNK_BYTES // np.dtype(dtype).itemsize, max(1, length))
        dataset = self._file.create_dataset(
            name, (length,), dtype, maxshape=(None,), chunks=(chunk,), **self._filter
        )
        return ChunkAppender(dataset, direct=not self._filter)

    def append(self, rows: Rows, labels: Float64Array, row_ids: Int64Array) -> None:
        """Write rows below those written so far."""
        parts = self._parts
        parts["y"].append(labels)
        parts["row"].append(row_ids)
        if isinstance(rows, CSRRows):
            parts["X/data"].append(rows.data)
            parts["X/indices"].append(rows.indices)
            parts["X/indptr"].append(rows.indptr[1:] + self._stored)
            self._stored += len(rows.data)
        else:
            parts["X"].append(rows)
        self._row += len(labels)

    @property
    def fraction_written(self) -> float:
        """Share of the rows written so far."""
        return self._row / self._n_rows

    def finish(
        self,
        *,
        class_counts: dict[float, int],
        seed: int | None,
        source: str,
        scaling: Scaling,
        mean: Float64Array,
        mean_square_norm: float,
    ) -> None:
        """Write attributes and statistics; the file is complete after this.

        Parameters
        ----------
        class_counts : dict
            Rows of each label value.
        seed : int or None
            Seed of the shuffle; None for the order of the input.
        source : str
            Names of the inputs.
        scaling : Scaling
            What was done to the values.
        mean : ndarray of float64, shape (n_features,)
            Column means of the values as stored.
        mean_square_norm : float
            Mean squared norm of the rows as stored.
        """
        for part in self._parts.values():
            part.flush()
        if isinstance(self._file["X"], h5py.Group):
            # Scaling may have made zeros of stored values.
            self._file["X/data"].resize((self._stored,))
            self._file["X/indices"].resize((self._stored,))
        names = sorted(class_counts)
        attributes = self._file.attrs
        attributes["format_version"] = FORMAT_VERSION
        attributes["n_rows"] = self._row
        attributes["n_features"] = self._n_features
        attributes["n_classes"] = len(names)
        attributes["class_names"] = np.array(names, dtype=np.float64)
        attributes["class_counts"] = np.array([class_counts[name] for name in names], np.int64)
        attributes["shuffled"] = seed is not None
        if seed is not None:
            attributes["shuffle_seed"] = seed
        attributes["source"] = source
        attributes["compression"] = self._compression
        attributes["mean_square_norm"] = mean_square_norm
        self._file["mean"] = mean
        scaling.write(self._file)
        attributes["complete"] = 1
