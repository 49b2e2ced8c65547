"""Text from files, compressed files and standard input, in blocks of whole lines.

Owns opening, decompression and cutting at line ends. Does not look into a line.
"""

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
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

import numpy as np

from ooc_fw.system.errors import InputError

BLOCK_BYTES = 4 << 20
MAX_LINE_BYTES = 64 << 20
"""Longest line: it is parsed whole, and memory shall not depend on the input."""

STANDARD_INPUT = "-"

# Told apart by their first bytes, not by name: that works for standard input as well.
_DECOMPRESSORS: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_NOT_TEXT = {
    b"\x89HDF\r\n\x1a\n": "is an HDF5 file already: use it as it is",
    b"\x93NUMPY": "is a NumPy array: train reads it as it is, with --labels for its labels",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd: convert the output of 'zstd -dc FILE' from '-'",
    b"PK\x03\x04": "is a zip archive: convert the output of 'unzip -p FILE' from '-'",
}
_DAMAGED = (EOFError, lzma.LZMAError, zlib.error, OSError)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SNIFF_BYTES = 8
_NEWLINE = ord("\n")


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole lines of one input.

    Parameters
    ----------
    name : str
        The input, for messages.
    text : bytes
        Ends in a newline.
    first_line : int
        Line number of the first line, from 1.
    n_lines : int
        Newlines in `text`.
    """

    name: str
    text: bytes
    first_line: int
    n_lines: int


class TextInput:
    """One input, opened and checked; a context manager.

    Parameters
    ----------
    path : str or PathLike
        A file (plain, .gz, .bz2 or .xz, whatever its name says), or "-" for standard input.

    Attributes
    ----------
    name : str
        The input, for messages.
    size : int or None
        Bytes on disk, None where there is no file with a size.
    compressed : bool
        Whether the bytes on disk are not the text itself.
    text_bytes : int
        Bytes of text handed out so far.

    Raises
    ------
    InputError
        When the input is missing, unreadable, or obviously no text.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._owned = os.fspath(path) != STANDARD_INPUT
        self.name = os.fspath(path) if self._owned else "standard input"
        self.size: int | None = None
        self.text_bytes = 0
        self._raw = self._open_file(Path(path)) if self._owned else _standard_input()
        try:
            self._stream = self._decompressed()
        except BaseException:
            self.close()
            raise
        self.compressed = self._stream is not self._raw

    def _open_file(self, path: Path) -> io.BufferedReader:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise InputError(f"{path} does not exist; check the name of the input") from None
        except IsADirectoryError:
            raise InputError(f"{path} is a directory; name the files in it") from None
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode):
            self.size = status.st_size
        return file

    def _decompressed(self) -> BinaryIO:
        try:
            head = self._raw.peek(_SNIFF_BYTES)
        except OSError as error:
            raise InputError(
                f"{self.name} cannot be read ({error.strerror}); restore a copy on another disk"
            ) from error
        for magic, hint in _NOT_TEXT.items():
            if head.startswith(magic):
                raise InputError(f"{self.name} {hint}")
        for magic, opener in _DECOMPRESSORS.items():
            if head.startswith(magic):
                return cast(BinaryIO, opener(self._raw, "rb"))
        return self._raw

    def __enter__(self) -> TextInput:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self._owned:
            self._raw.close()

    @property
    def bytes_read(self) -> int:
        """Bytes taken from disk so far; for standard input, bytes of text."""
        return self.text_bytes if self.size is None else self._raw.tell()

    def blocks(self, block_bytes: int = BLOCK_BYTES) -> Iterator[TextBlock]:
        """Cut the text at line ends into blocks of about `block_bytes`.

        A longer line makes a longer block, up to MAX_LINE_BYTES; a missing last newline is added.

        Raises
        ------
        InputError
            A line is too long, or the input cannot be read.
        """
        line = 1
        begun: list[bytes] = []  # parts of a line whose end has not been read
        data = self._read(block_bytes).removeprefix(_BYTE_ORDER_MARK)
        while data:
            cut = data.rfind(b"\n") + 1
            if cut:
                text = b"".join([*begun, memoryview(data)[:cut]])
                block = TextBlock(self.name, text, line, _count_lines(text))
                line += block.n_lines
                begun = []
                yield block
            begun.append(data[cut:])
            if sum(map(len, begun)) > MAX_LINE_BYTES:
                raise InputError(
                    f"{self.name}, line {line}: it is longer than {MAX_LINE_BYTES >> 20} MiB, the "
                    f"limit for a row of text; is this text with one row a line?"
                )
            data = self._read(block_bytes)
        rest = b"".join(begun)
        if rest:
            yield TextBlock(self.name, rest + b"\n", line, 1)

    def _read(self, n_bytes: int) -> bytes:
        try:
            data = self._stream.read(n_bytes)
        except _DAMAGED as error:
            reason = f"{error}".rstrip(".") or type(error).__name__
            raise InputError(
                f"{self.name} is damaged or cut short ({reason}); fetch it again"
            ) from error
        self.text_bytes += len(data)
        return data


def _count_lines(text: bytes) -> int:
    """Newlines in `text`; `bytes.count` takes five times as long and holds up other threads."""
    return int(np.count_nonzero(np.frombuffer(text, dtype=np.uint8) == _NEWLINE))


def _standard_input() -> io.BufferedReader:
    stream: Any = getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise InputError("standard input is closed; name a file, or pipe the text in")
    return stream if hasattr(stream, "peek") else io.BufferedReader(stream)
