"""Which format a file has: told by its first bytes and, for text tables, by its name."""

from __future__ import annotations

import io
import os
import re
import zipfile
from contextlib import suppress

import h5py

from ooc_fw.system.errors import InputError

ZARR_METADATA = ("zarr.json", ".zgroup", ".zarray")  # one of them is in the folder of a store
HEAD_BYTES = 4096  # of a file, which tell its format
PACKED = ("gzip", "bzip2", "xz")  # compressions that the reader of text undoes
CHECKPOINT = b"ooc-fw checkpoint"  # begins a file of `ooc_fw.solver.checkpoint`
_MAGIC = {
    b"\x89HDF\r\n\x1a\n": "hdf5",
    b"\x93NUMPY": "npy",
    b"PAR1": "parquet",
    b"PK\x03\x04": "zip",
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    CHECKPOINT: "checkpoint",
}
_CSV_NAME = re.compile(r"\.(csv|tsv|tab)(\.(gz|bz2|xz))?$", re.IGNORECASE)
_PAIR = re.compile(r"(^|\s)\d+:")
_SEPARATED = re.compile(r"\S[,;|]\S")


def format_of(head: bytes) -> str | None:
    """Format of a file that begins with these bytes; None for text and whatever else."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def is_url(path: str) -> bool:
    """Whether a path names something remote."""
    return "://" in path


def is_store(path: str) -> bool:
    """Whether a path names a zarr store: a folder with its metadata, or something remote."""
    if is_url(path):
        return path.rstrip("/").endswith(".zarr")
    return any(os.path.isfile(os.path.join(path, name)) for name in ZARR_METADATA)


def stored_bytes(path: str) -> int | None:
    """Size of a file, or of all files in a folder; None of what is remote or not there."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    if not os.path.isdir(path):
        return None
    return sum(
        os.path.getsize(os.path.join(folder, name))
        for folder, _, names in os.walk(path)
        for name in names
    )


def open_bytes(path: str) -> io.BufferedReader:
    """Open a file; InputError if it is missing, a directory, or cannot be read."""
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check the name of the input") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a directory; name the files in it") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def read_head(path: str) -> bytes:
    """Beginning of a file, which tells its format."""
    with open_bytes(path) as file:
        return file.read(HEAD_BYTES)


def detect_format(path: str, *, is_table: bool = False) -> str:
    """Tell the format of a file, or of standard input ("-").

    It is "npy", "npz", "parquet", "hdf5", "zarr", "csv" or "libsvm". Text is CSV if it `is_table`
    because of an option, by its name, or because its first line has separators but no INDEX:VALUE.
    All else counts as "libsvm".
    """
    if is_store(path):
        return "zarr"
    text = "csv" if is_table else "libsvm"
    if path == "-" or (
        os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    ):
        return text  # the first bytes of a pipe can be read only once
    head = read_head(path)
    found = format_of(head)
    if found in ("npy", "parquet"):
        return found
    if found == "zip":
        return "npz" if path.endswith(".npz") or _holds_arrays(path) else "libsvm"
    if found == "checkpoint" or h5py.is_hdf5(path):
        return "hdf5"
    if is_table or _CSV_NAME.search(path):
        return "csv"
    line = head.lstrip().split(b"\n", 1)[0].split(b"#", 1)[0].decode("latin-1")
    is_text = found is None and b"\0" not in head
    return "csv" if is_text and _SEPARATED.search(line) and not _PAIR.search(line) else "libsvm"


def _holds_arrays(path: str) -> bool:
    with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return any(name.endswith(".npy") for name in archive.namelist())
    return False
