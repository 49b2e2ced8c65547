"""Files here or at an address (https://, s3://, gs://, by fsspec), their formats and their text.

The format is told by the first bytes and, for text tables, by the name.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import h5py
import numpy as np

from ooc_fw.system.errors import DamageError, InputError, unreadable
from ooc_fw.system.files import ZARR_METADATA

HEAD_BYTES = 4096  # of a file, which tell its format
TABLES = ("csv", "parquet", "arrow")  # formats of tables whose columns have names
_MAGIC = {
    b"\x89HDF\r\n\x1a\n": "hdf5",
    b"\x93NUMPY": "npy",
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"ooc-fw checkpoint": "checkpoint",  # of ooc-fw 0.2
}
_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow"}


def is_url(path: str) -> bool:
    """Whether a path names something remote."""
    return "://" in path


@contextmanager
def reading(place: str) -> Iterator[None]:
    """Turn what a file, a store or a service raises that cannot be read into a sentence."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{place} does not exist; check the name of the input") from None
    except ImportError as error:  # of zarr, or of what fsspec needs for this kind of address
        raise InputError(f"{place}: {error}; try: pip install 'ooc-fw[remote]'") from None
    except Exception as error:  # each library, codec and client has errors of its own
        if "unable to lock file" in str(error):
            raise InputError(
                f"{place} is being written by another program; wait until that is done"
            ) from error
        raise unreadable(place, error) or DamageError(
            f"{place} is damaged, or cannot be read ({error}); restore a copy or write it again"
        ) from error


def file_system(url: str) -> tuple[Any, str]:
    """File system of fsspec for an address or a local path, and the path there."""
    with reading(url):
        from fsspec.core import url_to_fs

        return url_to_fs(url)  # type: ignore[no-any-return]


def format_of(head: bytes) -> str | None:
    """Format of a file that begins with these bytes; None for text and whatever else."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def is_store(path: str) -> bool:
    """Whether a path names a zarr store: a folder with its metadata, or something remote."""
    if is_url(path):
        return path.rstrip("/").endswith(".zarr")
    return any(os.path.isfile(os.path.join(path, name)) for name in ZARR_METADATA)


def open_bytes(path: str) -> io.BufferedReader:
    """Open a file, local or remote; InputError if it is missing, a folder, or cannot be read."""
    with reading(path):
        if not is_url(path):
            return open(path, "rb")
        system, place = file_system(path)
        # Parts that were read are not kept: a text is read once from beginning to end.
        return io.BufferedReader(system.open(place, "rb", cache_type="readahead"))


def read_head(path: str) -> bytes:
    """Beginning of a file, which tells its format."""
    with open_bytes(path) as file, reading(path):
        return file.read(HEAD_BYTES)


def check_regular(path: str) -> None:
    """Raise InputError for a folder, a pipe or a device: rows are read more than once."""
    with reading(path):
        is_regular = stat.S_ISREG(os.stat(path).st_mode)
    if not is_regular:
        raise InputError(
            f"{path} is a folder, a pipe or a device, and rows are read more than once; give a file"
        )


def is_hdf5(path: str) -> bool:
    """Whether a file is HDF5, which may begin anywhere in it."""
    with reading(path):
        return bool(h5py.is_hdf5(path))


def is_folder(path: str) -> bool:
    """Whether a path names a folder, local or remote."""
    if not is_url(path):
        return os.path.isdir(path)
    system, place = file_system(path)
    with reading(path):
        return path.endswith("/") or bool(system.isdir(place) and not system.isfile(place))


def _format_inside(folder: str) -> str:
    """Format of the files of a table in a folder; InputError if there are none."""
    system, place = file_system(folder)
    with reading(folder):
        suffixes = (os.path.splitext(name)[1] for name in system.find(place))
        found = next((_SUFFIXES[suffix] for suffix in suffixes if suffix in _SUFFIXES), None)
    if found is None:
        raise InputError(
            f"{folder} is a folder without files of Parquet or Arrow; name the files in it"
        )
    return found


def check_no_log(folder: str) -> None:
    """Raise InputError for the folder of a table whose files hold removed rows, as a log says."""
    system, place = file_system(folder)
    with reading(folder):
        names = {name.rstrip("/").rpartition("/")[2] for name in system.ls(place, False)}
    if {"_delta_log", ".hoodie"} & names or {"metadata", "data"} <= names:
        raise InputError(
            f"{folder} is a table of Delta, Hudi or Iceberg, whose files hold removed rows, too; "
            f"export a snapshot of it to Parquet, and convert that"
        )


def detect_format(path: str, *, is_table: bool = False) -> str:
    """Tell the format of a file, or of standard input ("-").

    It is "npy", "parquet", "arrow", "hdf5", "zarr", "csv" or "libsvm". Text is CSV if it
    `is_table` because of an option, by its name, or because its first line has separators but no
    INDEX:VALUE. All else counts as "libsvm".
    """
    if is_store(path):
        return "zarr"
    if is_folder(path):
        return _format_inside(path)
    if path == "-" or (os.path.exists(path) and not os.path.isfile(path)):
        return "csv" if is_table else "libsvm"  # bytes of a pipe can be read only once
    head = read_head(path)
    kind = format_of(head)
    if kind in ("npy", "parquet", "arrow"):
        return kind
    if kind == "checkpoint" or is_hdf5(path):
        return "hdf5"
    line = head.lstrip().split(b"\n", 1)[0].split(b"#", 1)[0].decode("latin-1")
    has_columns = re.search(r"\S[,;|]\S", line) and not re.search(r"(^|\s)\d+:", line)
    is_table |= bool(kind is None and b"\0" not in head and has_columns)
    is_named = re.search(r"\.(csv|tsv|tab)(\.(gz|bz2|xz))?$", path, re.IGNORECASE)
    return "csv" if is_table or is_named else "libsvm"


# Text is stored as UTF-8 of a fixed length, in the attribute itself. Strings of variable length lie
# in a heap of the file that has no checksum, and one changed bit there can keep the HDF5 library in
# an endless loop.

LABEL_NAMES = "label_names"  # attribute of labels: the words that 0, 1, ... stand for
# Attributes of a data file: whether its labels are targets of a regression, the names of its
# features, and how the columns of a table became these, as JSON.
TARGETS, COLUMNS, RECORD = "targets", "columns", "table"


def as_text(value: Any) -> str:
    """Text that HDF5 holds, as bytes or not; it may be a file name that is not UTF-8."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def put_text(attributes: Any, name: str, text: str) -> None:
    """Store `text` in HDF5 attributes."""
    attributes[name] = np.bytes_(text.encode("utf-8", "surrogateescape"))


def get_text(attributes: Any, name: str) -> str:
    """Read text that `put_text` or another tool stored; KeyError when there is none."""
    return as_text(attributes[name])


def put_texts(attributes: Any, name: str, texts: Sequence[str]) -> None:
    """Store several texts as an array of one fixed length, in attributes or as a data set."""
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    attributes[name] = np.array(encoded, dtype=np.bytes_)


def get_texts(attributes: Any, name: str) -> list[str] | None:
    """Read what `put_texts` or another tool stored; None when there is nothing."""
    if name not in attributes:
        return None
    return [as_text(text) for text in np.ravel(attributes[name]).tolist()]
