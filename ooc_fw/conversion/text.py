"""Text from files, compressed files and standard input, in blocks of whole rows; LIBSVM text.

A line of LIBSVM is ``LABEL INDEX:VALUE INDEX:VALUE ...``; a comment may follow after "#".
`ooc_fw._core.text` parses ordinary lines, and `_parse_line` parses all others, slowly and exactly.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import os
import re
import select
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ooc_fw._core.text import FLOAT32_OVERFLOW, Rules, parse_lines
from ooc_fw.conversion import readers
from ooc_fw.conversion.readers import ParsedBlock, ordered_map
from ooc_fw.data.formats import HEAD_BYTES, format_of, open_bytes, reading
from ooc_fw.data.labels import LARGEST_LABEL
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array
from ooc_fw.system.errors import InputError, unreadable

STANDARD_INPUT = "-"
PACKED_BYTES = 1 << 19  # bytes of a bzip2 or xz file that are read at once

_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole rows of one input. A row is a line; in CSV it has several if a cell has line breaks."""

    name: str  # the input, for messages
    text: bytes  # the lines, each with a newline at its end
    first_line: int  # number of the first line, from 1

    @property
    def n_lines(self) -> int:
        """Number of newlines in the text."""
        # `bytes.count` takes five times as long and holds the GIL.
        return int(np.count_nonzero(np.frombuffer(self.text, dtype=np.uint8) == ord("\n")))


def _streams(new: Callable[[], Any], file: Any) -> Iterator[bytes]:
    """Yield the content of a bzip2 or xz file, one compressed stream after the other.

    `new` makes the object that unpacks a stream; zeros may follow one. Python's own readers end
    without an error at a stream that cannot be unpacked.
    """
    packed = file.read(PACKED_BYTES)
    while packed:
        unpacker = new()
        while not unpacker.eof:
            packed = packed or (unpacker.needs_input and file.read(PACKED_BYTES)) or b""
            if unpacker.needs_input and not packed:
                raise EOFError("its last stream has no end")
            yield unpacker.decompress(packed, readers.BLOCK_BYTES)
            packed = b""
        packed = unpacker.unused_data.lstrip(b"\0")
        while not packed and (more := file.read(PACKED_BYTES)):
            packed = more.lstrip(b"\0")


_UNPACKERS: dict[str, Callable[[Any], Iterator[bytes]]] = {
    "bzip2": partial(_streams, bz2.BZ2Decompressor),
    "xz": partial(_streams, partial(lzma.LZMADecompressor, lzma.FORMAT_XZ)),
}


class TextInput(readers.Reader):
    """An open text: a file, or "-" for standard input; compression is found by its first bytes.

    Blocks of a `live` text end where a pipe has no more lines yet. Their sizes depend on time.
    """

    def __init__(self, path: str | os.PathLike[str], *, live: bool = False) -> None:
        name = os.fspath(path)
        if name == STANDARD_INPUT:
            super().__init__("standard input")
            raw: Any = getattr(sys.stdin, "buffer", None)
            if raw is None or raw.closed:
                raise InputError("standard input is closed; name a file, or pipe the text in")
            self._raw = raw if hasattr(raw, "peek") else io.BufferedReader(raw)
        else:
            super().__init__(name, os.path.getsize(name) if os.path.isfile(name) else None)
            self._raw = self.enter_context(open_bytes(name))
        try:
            with reading(self.name):
                kind = format_of(self._raw.peek(HEAD_BYTES))
            if kind not in (None, "gzip", *_UNPACKERS):
                raise InputError(
                    f"{self.name} is {kind}, which is not read as text; unpack it, or write it as "
                    f"plain text or as .gz, .bz2 or .xz"
                )
        except InputError:
            self.close()
            raise
        stream: Any = gzip.open(self._raw) if kind == "gzip" else self._raw
        self._read_part = self._read_live if live and kind is None else stream.read
        if kind in _UNPACKERS:
            parts = filter(None, _UNPACKERS[kind](self._raw))
            self._read_part = lambda _: next(parts, b"")

    @property
    def bytes_read(self) -> int:
        """Bytes that were read from disk so far; for standard input, the bytes of text."""
        return self.text_bytes if self.size is None else self._raw.tell()

    def blocks(self) -> Iterator[TextBlock]:
        """Cut the text at ends of rows; a missing last newline is added.

        A row above BLOCK_BYTES makes a longer block, and a row above MAX_ROW_BYTES an InputError.
        """
        line = 1
        begun: list[bytes] = []  # parts of a row whose end has yet to be read
        data = self._read().removeprefix(b"\xef\xbb\xbf")  # the byte order mark
        if data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in data[:HEAD_BYTES]:
            raise InputError(
                f"{self.name} has bytes that UTF-8 text has not, as UTF-16 or binary files have; "
                f"write it in UTF-8 (iconv -f utf-16 -t utf-8)"
            )
        while data:
            cut = self._last_row_end(data)
            if cut:
                block = TextBlock(self.name, b"".join([*begun, memoryview(data)[:cut]]), line)
                line += block.n_lines
                begun = []
                yield block
            begun.append(data[cut:])
            if sum(map(len, begun)) > readers.MAX_ROW_BYTES:
                raise InputError(
                    f"{self.name}, line {line}: the row that begins here is longer than "
                    f"{readers.MAX_ROW_BYTES >> 20} MiB, the limit for text; end each row with a "
                    f"newline, and each quote of CSV"
                )
            data = self._read()
        if rest := b"".join(begun):
            self._check_end(line)
            yield TextBlock(self.name, rest + b"\n", line)

    def _last_row_end(self, data: bytes) -> int:
        """Place after the last line end that ends a row in the next part of the text; 0 if none."""
        return data.rfind(b"\n") + 1

    def _check_end(self, line: int) -> None:
        """Raise InputError if the last row, which begins at `line`, is incomplete."""

    def _read(self) -> bytes:
        try:
            data: bytes = self._read_part(readers.BLOCK_BYTES)
        except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
            raise unreadable(self.name, error) or InputError(
                f"{self.name} is damaged or cut short ({error}); fetch it again"
            ) from error
        self.text_bytes += len(data)
        return data

    def _read_live(self, size: int) -> bytes:
        """Up to `size` bytes: with a line end, all that can be read without waiting for more."""
        data = b""
        while more := self._raw.read1(size - len(data)):
            data += more
            with suppress(OSError, ValueError):  # not every stream can be asked
                self.drained = b"\n" in data and not select.select([self._raw], [], [], 0)[0]
            if self.drained:
                break
        return data


class LineEncoder(readers.Encoder):
    """Makes rows from LIBSVM text."""

    def __init__(self, labels: readers.LabelNumbers, **how: Any) -> None:
        self.labels = labels
        self._how = how  # arguments of `parse_block`

    def parse(self, _reader: readers.Reader, block: TextBlock) -> ParsedBlock:  # noqa: D102
        parsed = parse_block(block, **self._how)
        return replace(parsed, labels=self.labels.of(parsed.labels))

    def column_name(self, column: int) -> str:  # noqa: D102
        return f"feature {column + (not self._how['zero_based'])}"


def iter_libsvm(
    path: str | os.PathLike[str],
    *,
    zero_based: bool = False,
    live: bool = False,
) -> Iterator[tuple[Float64Array, CSRRows]]:
    """Yield labels and rows of LIBSVM text, block by block; rows are as wide as the widest so far.

    Values are float64, to be scaled before they are rounded. Blocks of a `live` text have the rows
    that have come so far.
    """
    n_rows = width = 0
    with TextInput(path, live=live) as text:
        parse = partial(parse_block, zero_based=zero_based)
        for block in ordered_map(parse, text.blocks(), lambda: text.drained):
            n_rows += len(block.rows)
            width = max(width, block.width)
            yield block.labels, replace(block.rows, n_features=width)
    if not n_rows:
        raise InputError(f"{text.name} holds no rows; a row is a line LABEL INDEX:VALUE ...")


def parse_block(
    block: TextBlock,
    *,
    zero_based: bool = False,
    n_features: int | None = None,
    log1p: bool = False,
) -> ParsedBlock:
    """Parse a block of text.

    Columns from `n_features` on are left out. With `log1p`, values must be above -1.
    """
    limit = 2**31 if n_features is None else n_features
    rules = Rules(int(not zero_based), limit, -1.0 if log1p else -np.inf)
    text = np.frombuffer(block.text, dtype=np.uint8)
    # An upper bound, since a pair has at least four bytes. The unused rest takes no memory, because
    # its pages are never written.
    n_pairs = len(text) // 4
    labels = np.empty(block.n_lines)
    indptr = np.zeros(len(labels) + 1, dtype=np.int64)
    indices = np.empty(n_pairs, dtype=np.int32)
    values = np.empty(n_pairs)
    place = (0, 0, 0, 0)
    while True:
        place = parse_lines(text, rules, place, labels, indptr, indices, values)
        at, n_lines, n_rows, width = place
        if at == len(text):
            break
        end = block.text.index(b"\n", at) + 1
        try:
            label, columns, data = _parse_line(block.text[at:end], rules)
        except ValueError as error:
            line = block.first_line + n_lines
            raise InputError(f"{block.name}, line {line}: {error}") from None
        stored = np.flatnonzero((data != 0) & (columns < limit))
        labels[n_rows] = label
        part = slice(int(indptr[n_rows]), int(indptr[n_rows]) + len(stored))
        indices[part] = columns[stored]
        values[part] = data[stored]
        indptr[n_rows + 1] = part.stop
        width = max(width, int(columns.max(initial=-1)) + 1)
        place = (end, n_lines + 1, n_rows + 1, width)
    data = values[: int(indptr[n_rows])]
    rows = CSRRows(data, indices[: len(data)], indptr[: n_rows + 1], min(width, limit))
    return ParsedBlock(labels[:n_rows], rows, width)


def _parse_line(line: bytes, rules: Rules) -> tuple[float, Int64Array, Float64Array]:
    """Label, sorted columns and values of a line; ValueError if it is wrong.

    This function defines the format. `ooc_fw._core.text` reads a part of it, with the same result.
    """
    tokens = (match[0] for match in re.finditer(rb"[^\s#]+", line.partition(b"#")[0]))
    word = next(tokens)
    label = _number(word)
    if not math.isfinite(label):
        raise ValueError(
            f"label {_shown(word)} is not a finite number; a line is LABEL INDEX:VALUE "
            f"INDEX:VALUE ..."
        )
    if abs(label) >= LARGEST_LABEL:
        raise ValueError(
            f"label {_shown(word)} is a whole number too large for float64; number the classes anew"
        )
    columns = array("q")
    values = array("d")
    for k, token in enumerate(tokens):
        if k > 0 or not token.startswith(b"qid:"):  # the number of a query, for ranking
            column, value = _parse_pair(token, rules)
            columns.append(column)
            values.append(value)
    order = np.argsort(columns, kind="stable")
    found = np.array(columns, dtype=np.int64)[order]
    twice = np.flatnonzero(found[1:] == found[:-1])
    if len(twice):
        index = found[twice[0]] + rules.index_base
        raise ValueError(f"feature index {index} stands twice in one line; keep one of them")
    return label, found, np.array(values, dtype=np.float64)[order]


def _parse_pair(token: bytes, rules: Rules) -> tuple[int, float]:
    """Column and value of INDEX:VALUE; ValueError if it is wrong."""
    index, colon, word = token.partition(b":")
    column = -1
    if colon and index.isdigit():
        column = int(index.lstrip(b"0")[:20] or 0) - rules.index_base
    if not 0 <= column < 2**31:
        raise ValueError(
            f"{_shown(token)} is not INDEX:VALUE; the index is a whole number from 1 (from 0 with "
            f"--zero-based) to {2**31 - 1}, no blank around the colon"
        )
    value = _number(word)
    if not abs(value) < FLOAT32_OVERFLOW:
        raise ValueError(
            f"the value of {_shown(token)} is not a finite number of float32 (up to 3.4e38)"
        )
    if value <= rules.above and column < rules.width_limit:
        raise ValueError(f"the value of {_shown(token)} is not above -1, so that it has no log1p")
    return column, value


def _number(word: bytes) -> float:
    """The float64 nearest to a decimal number; NaN for other text."""
    return float(word) if _NUMBER.fullmatch(word) else math.nan


def _shown(token: bytes) -> str:
    """The beginning of a token, for messages."""
    return f"'{token[:40].decode('ascii', 'backslashreplace')}{'...' * (len(token) > 40)}'"
