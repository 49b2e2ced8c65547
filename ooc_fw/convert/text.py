"""Text from files, compressed files and standard input, in blocks of whole rows; LIBSVM text.

The grammar of LIBSVM text is in `ooc_fw._core.text`; the wording of every parse error is here.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from ooc_fw._core import text as compiled
from ooc_fw._core.text import INT32_MAX, TOKEN, Problem
from ooc_fw.convert import readers
from ooc_fw.convert.readers import EXAMPLES, LabelNumbers, ParsedBlock, ParseOptions, ordered_map
from ooc_fw.data.formats import HEAD_BYTES, format_of, open_bytes, refuse_foreign
from ooc_fw.data.labels import is_exact_label
from ooc_fw.data.rows import CSRRows, Float64Array
from ooc_fw.system.errors import InputError, unreadable

STANDARD_INPUT = "-"
MIN_PAIR_BYTES = 4  # a blank, a digit, a colon and a digit

_OPENERS: dict[str | None, Any] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
_DAMAGED = (EOFError, lzma.LZMAError, zlib.error, OSError)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TOKEN = re.compile(rb"[^\s#]*")
_SHOWN_BYTES = 40  # of a wrong token


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole rows of one input, which are lines, or in CSV several where a cell has line breaks."""

    name: str  # the input, for messages
    text: bytes  # the lines; the last one ends in a newline, too
    first_line: int  # number of the first line, from 1

    @property
    def n_lines(self) -> int:
        """Number of newlines in the text."""
        # `bytes.count` takes five times as long and holds the GIL.
        return int(np.count_nonzero(np.frombuffer(self.text, dtype=np.uint8) == ord("\n")))


class TextInput(readers.Reader):
    """An open text: a file, or "-", standard input; plain or compressed, as its content tells."""

    _long_row_hint = "is this text with one row per line?"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        is_stream = os.fspath(path) == STANDARD_INPUT
        super().__init__("standard input" if is_stream else os.fspath(path))
        if not is_stream and os.path.isfile(self.name):
            self.size = os.path.getsize(self.name)
        self._raw = _standard_input() if is_stream else self.enter_context(open_bytes(self.name))
        try:
            self._open_stream()
        except BaseException:
            self.close()
            raise

    def _open_stream(self) -> None:
        """Find the compression, and refuse what is not text."""
        try:
            kind = format_of(self._raw.peek(HEAD_BYTES))
        except OSError as error:
            raise unreadable(self.name, error) or error from error
        if kind not in _OPENERS and kind is not None:
            way = "convert the output of 'zstd -dc FILE' from '-'"
            raise InputError(
                f"{self.name} is {kind}, not text; {way if kind == 'zstd' else 'name its --format'}"
            )
        self._stream: Any = _OPENERS[kind](self._raw, "rb") if kind in _OPENERS else self._raw
        head = b""
        with suppress(*_DAMAGED):  # which reading will tell
            head = self._stream.peek(HEAD_BYTES)[:HEAD_BYTES]
        refuse_foreign(self.name, head)

    @property
    def bytes_read(self) -> int:
        """Bytes that were read from disk so far; for standard input, bytes of text."""
        return self.text_bytes if self.size is None else self._raw.tell()

    def blocks(self) -> Iterator[TextBlock]:
        """Cut the text at the ends of rows; a missing last newline is added.

        A row above BLOCK_BYTES makes a longer block, and one above MAX_ROW_BYTES an InputError.
        """
        block_bytes = readers.BLOCK_BYTES
        line = 1
        begun: list[bytes] = []  # parts of a line whose end was not read yet
        data = self._read(block_bytes).removeprefix(_BYTE_ORDER_MARK)
        while data:
            cut = self._last_row_end(data)
            if cut:
                text = b"".join([*begun, memoryview(data)[:cut]])
                block = TextBlock(self.name, text, line)
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
            self._check_end(line)
            yield TextBlock(self.name, rest + b"\n", line)

    def _last_row_end(self, data: bytes) -> int:
        """Place after the last line end in the next part of the text that ends a row, or 0."""
        return data.rfind(b"\n") + 1

    def _check_end(self, line: int) -> None:
        """Raise InputError if the text must not end in the row that begins at a line."""

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


def _standard_input() -> io.BufferedReader:
    stream: Any = getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise InputError("standard input is closed; name a file, or pipe the text in")
    return stream if hasattr(stream, "peek") else io.BufferedReader(stream)


class LineEncoder(readers.Encoder):
    """Makes rows of LIBSVM text."""

    hint = "a row is a line LABEL INDEX:VALUE INDEX:VALUE ..."

    def __init__(self, options: ParseOptions, new: Mapping[str, str] | None = None) -> None:
        self._options = options
        self.labels = LabelNumbers(new=new)

    def parse(self, _reader: readers.Reader, block: TextBlock) -> ParsedBlock:  # noqa: D102
        parsed = parse_block(block, self._options)
        # Lines may have been left out, so that the number of a row does not tell its line.
        place = f"a line of {block.name} from line {block.first_line} on"
        return replace(parsed, labels=self.labels.of(parsed.labels, lambda _: place))

    def column_name(self, column: int) -> str:  # noqa: D102
        return f"feature {column + (not self._options.zero_based)}"


def iter_libsvm(
    path: str | os.PathLike[str], *, zero_based: bool = False, exact: bool = False
) -> Iterator[tuple[Float64Array, CSRRows, int]]:
    """Labels and rows of LIBSVM text, block by block, and the number of the first line of each.

    The rows are as wide as any so far. Values are float64 if `exact`, to be scaled, then rounded.
    """
    options = ParseOptions(zero_based=zero_based)
    n_rows = width = 0
    with TextInput(path) as text:

        def parse(block: TextBlock) -> tuple[ParsedBlock, int]:
            dtype = np.float64 if exact else np.float32
            return parse_block(block, options, dtype), block.first_line

        for block, first_line in ordered_map(parse, text.blocks()):
            n_rows += len(block.rows)
            width = max(width, block.width)
            yield block.labels, replace(block.rows, n_features=width), first_line
        if not n_rows:
            raise InputError(f"{text.name} holds no rows; {LineEncoder.hint}")


def parse_block(
    block: TextBlock, options: ParseOptions, dtype: type[np.floating[Any]] = np.float64
) -> ParsedBlock:
    """Parse one block of text into values of `dtype`, each rounded from float64."""
    limit = INT32_MAX + 1 if options.n_features is None else options.n_features
    text = np.frombuffer(block.text, dtype=np.uint8)
    # An upper bound: pages of an array that are never written take no memory.
    n_pairs = len(block.text) // MIN_PAIR_BYTES
    labels = np.empty(block.n_lines)
    indptr = np.zeros(len(labels) + 1, dtype=np.int64)
    indices = np.empty(n_pairs, dtype=np.int32)
    values: Any = np.empty(n_pairs)
    cursor = np.zeros(compiled.CURSOR_SIZE, dtype=np.int64)
    known: dict[int, float] = {}  # position -> number that the compiled parser asked for
    errors: list[str] = []
    n_errors = 0
    while True:
        expected = compiled.Expected(
            0 if options.zero_based else 1,
            limit,
            -1.0 if options.log1p else -np.inf,
            np.array(list(known), dtype=np.int64),
            np.array(list(known.values()), dtype=np.float64),
        )
        found = compiled.parse_lines(text, expected, cursor, labels, indptr, indices, values)
        problem = Problem(found)
        if problem == Problem.NONE:
            break
        if problem == Problem.UNDECIDED:
            # Numbers of lines that have been parsed are of no use any more.
            known = {at: number for at, number in known.items() if at >= cursor[compiled.AT]}
            known[int(cursor[TOKEN])] = _exact_number(block.text, int(cursor[TOKEN]))
            continue
        message = _message(block, problem, cursor)
        if not options.skip:
            raise InputError(message)
        errors += [message] * (n_errors < EXAMPLES)
        n_errors += 1
        cursor[compiled.AT] = block.text.index(b"\n", int(cursor[compiled.AT])) + 1
        cursor[compiled.LINE] += 1
    indptr = indptr[: int(cursor[compiled.ROWS]) + 1]
    width = int(cursor[compiled.WIDTH])
    stored = slice(int(indptr[-1]))
    data = values[stored].astype(dtype, copy=False)
    return ParsedBlock(
        labels[: len(indptr) - 1],
        CSRRows(data, indices[stored], indptr, min(width, limit)),
        width,
        int(cursor[compiled.DROPPED]),
        n_errors,
        tuple(errors),
    )


def _token(text: bytes, at: int) -> bytes:
    match = _TOKEN.match(text, at)
    assert match is not None  # the pattern also matches an empty token
    return match.group()


def _exact_number(text: bytes, at: int) -> float:
    """Float64 nearest to the label or the value of the pair at `at`.

    A whole number as a label that float64 would merge with its neighbour becomes NaN.
    """
    _, colon, number = _token(text, at).rpartition(b":")
    return float(number) if colon or is_exact_label(number.decode("ascii")) else np.nan


def _message(block: TextBlock, problem: Problem, cursor: np.ndarray) -> str:
    """One sentence: input, line, what is wrong and the way out."""
    at = int(cursor[TOKEN])
    shown = str(at)
    if problem != Problem.DUPLICATE_INDEX:
        token = _token(block.text, at)
        shown = token[:_SHOWN_BYTES].decode("ascii", "backslashreplace")
        shown += "..." * (len(token) > _SHOWN_BYTES)
    line = block.first_line + cursor[compiled.LINE]
    return f"{block.name}, line {line}: {_REASONS[problem].format(shown)}"


_REASONS = {
    Problem.LABEL: "label '{}' is not a finite number; a line is LABEL INDEX:VALUE INDEX:VALUE ...",
    Problem.LABEL_NOT_EXACT: "label '{}' is a whole number that float64 does not tell from its "
    "neighbours; number the classes anew",
    Problem.PAIR: "'{}' is not INDEX:VALUE; the index is a whole number from 1 (from 0 with "
    "--zero-based), no blank around the colon",
    Problem.ZERO_INDEX: "'{}' has index 0; give --zero-based if the first feature is called 0",
    Problem.INDEX_TOO_LARGE: f"'{{}}' has an index beyond {INT32_MAX}; number the features anew",
    Problem.DUPLICATE_INDEX: "feature index {} stands twice in one line; keep one of them",
    Problem.VALUE: "the value of '{}' is not a finite number; correct it or leave the row out",
    Problem.VALUE_TOO_LARGE: "the value of '{}' is beyond float32 (3.4e38); use another unit",
    Problem.NO_LOG1P: "the value of '{}' has no log1p, it is not above -1; leave out --log1p",
}
