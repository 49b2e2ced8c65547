"""Formats of files, detected from their first bytes or, for tables, their name; text in HDF5."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ooc_fw.system.errors import DamageError, InputError, unreadable

HEAD_BYTES = 4096  # first bytes of a file, from which its format is detected
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
    b"\x04\x22\x4d\x18": "lz4",
    b"\x1f\x9d": "compress (.Z)",
    b"\x5d\x00\x00": "lzma",
    b"PK\x03\x04": "zip",
}
_CSV = re.compile(r"\.(csv|tsv|tab)(\.(gz|bz2|xz))?$", re.IGNORECASE)  # end of a name
_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow"}


@contextmanager
def reading(place: str) -> Iterator[None]:
    """Turn any error from reading a file or store into an InputError with a clear message."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except FileNotFoundError:
        raise InputError(f"{place} does not exist; check the name of the input") from None
    except ImportError as error:
        raise InputError(f"{place}: {error}; install that package") from None
    except Exception as error:  # each library and codec has its own errors
        if "unable to lock file" in str(error):
            raise InputError(
                f"{place} is being written by another program; wait until that is done"
            ) from error
        if "already open for write" in str(error):
            raise InputError(
                f"{place} is open in a program that writes it, or that program was killed; end "
                f"it, or mark the file as closed: h5clear -s {place} (of hdf5-tools)"
            ) from error
        raise unreadable(place, error) or DamageError(
            f"{place} is damaged, or cannot be read ({error}); restore a copy or write it again"
        ) from error


def format_of(head: bytes) -> str | None:
    """Format of a file that begins with these bytes; None for text and unknown formats."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def open_bytes(path: str) -> io.BufferedReader:
    """Open a file; InputError if it is missing, a folder, or cannot be read."""
    with reading(path):
        return open(path, "rb")


def read_head(path: str) -> bytes:
    """The first `HEAD_BYTES` of a file."""
    with open_bytes(path) as file, reading(path):
        return file.read(HEAD_BYTES)


def check_regular(path: str) -> None:
    """Raise InputError for a folder, a pipe or a device, since rows are read more than once."""
    with reading(path):
        is_regular = stat.S_ISREG(os.stat(path).st_mode)
    if not is_regular:
        raise InputError(
            f"{path} is a folder, a pipe or a device, and rows are read more than once; give a file"
        )


def check_no_log(folder: str) -> None:
    """Raise InputError for a folder with a log of removed rows, which its files still hold."""
    names = {*os.listdir(folder)}
    if {"_delta_log", ".hoodie"} & names or {"metadata", "data"} <= names:
        raise InputError(
            f"{folder} is a table of Delta, Hudi or Iceberg, whose files hold removed rows, too; "
            f"export a snapshot to Parquet, and convert it"
        )


def _format_inside(folder: str) -> str:
    """Format of a folder: that of a zarr store, or of the files of a table in it."""
    if {"zarr.json", ".zgroup", ".zarray"} & {*os.listdir(folder)}:
        return "zarr"
    for path in sorted(Path(folder).rglob("*")):
        if path.suffix in _SUFFIXES:
            return _SUFFIXES[path.suffix]
    if any(map(_CSV.search, os.listdir(folder))):
        return "csv"
    raise InputError(
        f"{folder} is a folder without CSV, Parquet or Arrow files; name the files in it"
    )


def detect_format(path: str, *, is_table: bool = False) -> str:
    """Detect the format of a file, or of standard input ("-").

    It is "npy", "parquet", "arrow", "hdf5", "zarr", "csv" or "libsvm". Text is CSV if an option
    says so (`is_table`), if its name does, or if its first line has separators but no INDEX:VALUE.
    Anything else counts as "libsvm".
    """
    if os.path.isdir(path):
        return _format_inside(path)
    if path == "-" or (os.path.exists(path) and not os.path.isfile(path)):
        return "csv" if is_table else "libsvm"  # bytes of a pipe can be read only once
    head = read_head(path)
    kind = format_of(head)
    if kind in ("npy", "parquet", "arrow"):
        return kind
    with reading(path):
        if h5py.is_hdf5(path):  # its data may begin anywhere in the file
            return "hdf5"
    line = head.lstrip().split(b"\n", 1)[0].split(b"#", 1)[0].decode("latin-1")
    has_columns = re.search(r"\S[,;|]\S", line) and not re.search(r"(^|\s)\d+:", line)
    is_table |= bool(kind is None and b"\0" not in head and has_columns)
    return "csv" if is_table or _CSV.search(path) else "libsvm"


def files_of(path: Any, kind: str) -> list[Any]:
    """Files of a folder of CSV, in the order of their names; all other inputs stay whole."""
    is_folder = kind in ("auto", "csv") and isinstance(path, str) and os.path.isdir(path)
    if not is_folder or _format_inside(path) != "csv":
        return [path]
    names = sorted(name for name in os.listdir(path) if name[0] not in "._")
    for name in names:
        if not _CSV.search(name):
            raise InputError(
                f"{path} is a folder of CSV files, and {name!r} in it is none; move it elsewhere, "
                f"or name the files"
            )
    return [os.path.join(path, name) for name in names]


# Text is stored as UTF-8 of a fixed length in the attribute itself. HDF5 puts strings of variable
# length into a heap without checksums, and one changed bit there can send the library into an
# endless loop.

LABEL_NAMES = "label_names"  # attribute of labels: the words for 0, 1, ...
# Attributes of a data file: whether its labels are targets of a regression, the names of its
# features, and a record as JSON of how they came from the columns of a table. Then the number of
# rows of the input, and what is known of it as JSON.
TARGETS, COLUMNS, RECORD = "targets", "columns", "table"
N_INPUT, ORIGIN = "n_input", "origin"


def as_text(value: Any) -> str:
    """Text from HDF5, which may come as bytes; it may be a file name that is not valid UTF-8."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def as_bytes(text: str | Sequence[str]) -> Any:
    """Bytes that HDF5 stores for a text; several texts become an array of one fixed length."""
    if isinstance(text, str):
        return np.bytes_(text.encode("utf-8", "surrogateescape"))
    return np.array([as_bytes(one) for one in text], dtype=np.bytes_)


def get_texts(attributes: Any, name: str) -> list[str] | None:
    """Texts in an attribute, stored by `as_bytes` or another tool; None if there are none."""
    if name not in attributes:
        return None
    return [as_text(text) for text in np.ravel(attributes[name]).tolist()]
