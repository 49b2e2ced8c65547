"""Text from files, compressed files and standard input, in blocks of whole rows."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ooc_fw.convert import readers
from ooc_fw.data.formats import format_of, is_url, open_bytes, url_bytes
from ooc_fw.system.errors import InputError, unreadable

STANDARD_INPUT = "-"

_OPENERS: dict[str | None, Any] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
_NOT_TEXT = {
    "hdf5": "is an HDF5 file already: use it as it is",
    "checkpoint": "is a checkpoint of a run: ooc-fw info tells how to resume it",
    "npy": "is a NumPy array: train reads it as it is, with --labels for its labels",
    "parquet": "is a table: name its format by --format parquet",
    "arrow": "is a table: name its format by --format arrow",
    "zstd": "is compressed by zstd: convert the output of 'zstd -dc FILE' from '-'",
    "zip": "is a zip archive: convert the output of 'unzip -p FILE' from '-'",
}
_DAMAGED = (EOFError, lzma.LZMAError, zlib.error, OSError)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONGEST_MAGIC = 17


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole rows of one input, which are lines, or in CSV several where a cell has line breaks."""

    name: str  # the input, for messages
    text: bytes  # the lines; the last one ends in a newline, too
    first_line: int  # number of the first line, from 1
    n_lines: int  # number of newlines in `text`


class TextInput(readers.Reader):
    """An open text: a file, plain or compressed by gzip, bzip2 or xz, or "-", standard input.

    Compression is recognised by content. InputError if the input is missing, unreadable, or
    obviously not text.
    """

    _long_row_hint = "is this text with one row per line?"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        is_stream = os.fspath(path) == STANDARD_INPUT
        super().__init__("standard input" if is_stream else os.fspath(path))
        if is_stream:
            self._raw = _standard_input()
        else:
            self._raw = self.resources.enter_context(open_bytes(self.name))
            if is_url(self.name):
                self.size = url_bytes(self.name)
            else:
                status = os.fstat(self._raw.fileno())
                self.size = status.st_size if stat.S_ISREG(status.st_mode) else None
        try:
            found = format_of(self._raw.peek(_LONGEST_MAGIC))
        except OSError as error:
            self.close()
            raise unreadable(self.name, error) or error from error
        if found in _NOT_TEXT:
            self.close()
            raise InputError(f"{self.name} {_NOT_TEXT[found]}")
        opener = _OPENERS.get(found)
        self.compressed = opener is not None
        self._stream: Any = self._raw if opener is None else opener(self._raw, "rb")

    @property
    def bytes_read(self) -> int:
        """Bytes that were read from disk so far; for standard input, bytes of text."""
        return self.text_bytes if self.size is None else self._raw.tell()

    def blocks(self, block_bytes: int | None = None) -> Iterator[TextBlock]:
        """Cut the text at the ends of rows into blocks of about `block_bytes`.

        A longer row makes a longer block, and one above MAX_ROW_BYTES an InputError. A missing
        last newline is added.
        """
        block_bytes = readers.BLOCK_BYTES if block_bytes is None else block_bytes
        line = 1
        begun: list[bytes] = []  # parts of a line whose end was not read yet
        data = self._read(block_bytes).removeprefix(_BYTE_ORDER_MARK)
        while data:
            cut = self._last_row_end(data)
            if cut:
                text = b"".join([*begun, memoryview(data)[:cut]])
                block = TextBlock(self.name, text, line, _count_lines(text))
                line += block.n_lines
                begun = []
                yield block
            begun.append(data[cut:])
            if sum(map(len, begun)) > readers.MAX_ROW_BYTES:
                raise InputError(
                    f"{self.name}, line {line}: the row that begins here is longer than "
                    f"{readers.MAX_ROW_BYTES >> 20} MiB, the limit for text; {self._long_row_hint}"
                )
            data = self._read(block_bytes)
        if rest := b"".join(begun):
            text = rest + b"\n"
            yield TextBlock(self.name, text, line, _count_lines(text))

    def _last_row_end(self, data: bytes) -> int:
        """Place after the last line end in the next part of the text that ends a row, or 0."""
        return data.rfind(b"\n") + 1

    def _read(self, n_bytes: int) -> bytes:
        try:
            data = self._stream.read(n_bytes)
        except _DAMAGED as error:
            reason = f"{error}".rstrip(".") or type(error).__name__
            raise unreadable(self.name, error) or InputError(
                f"{self.name} is damaged or cut short ({reason}); fetch it again"
            ) from error
        self.text_bytes += len(data)
        return cast(bytes, data)


def _count_lines(text: bytes) -> int:
    """Newlines in `text`; `bytes.count` takes five times as long and holds the GIL."""
    return int(np.count_nonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n")))


def _standard_input() -> io.BufferedReader:
    stream: Any = getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise InputError("standard input is closed; name a file, or pipe the text in")
    return stream if hasattr(stream, "peek") else io.BufferedReader(stream)
