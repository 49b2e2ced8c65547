"""LIBSVM text to labels and sparse rows, block by block.

The grammar is in `ooc_fw._core.libsvm`; the wording of every parse error is here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from ooc_fw._core import libsvm as compiled
from ooc_fw._core.libsvm import INT32_MAX, TOKEN, Problem
from ooc_fw.convert.pipeline import ordered_map
from ooc_fw.convert.readers import EXAMPLES, Encoder, Parse, ParsedBlock, ParseOptions, Reader
from ooc_fw.convert.text import TextBlock, TextInput
from ooc_fw.data.labels import is_exact_label
from ooc_fw.data.rows import CSRRows, Float64Array
from ooc_fw.system.errors import InputError

NO_LIMIT = INT32_MAX + 1
"""Number of columns that text can name."""

MIN_PAIR_BYTES = 4
"""A blank, a digit, a colon and a digit."""

_TOKEN = re.compile(rb"[^\s#]*")
_SHOWN_BYTES = 40


class LineEncoder(Encoder):
    """Makes rows of LIBSVM text."""

    hint = "a row is a line LABEL INDEX:VALUE INDEX:VALUE ..."

    def __init__(self, options: ParseOptions) -> None:
        self._options = options
        if not options.exact:
            self.exact_parser = partial(parse_block, options=replace(options, exact=True))

    def parser(self, _reader: Reader) -> Parse:
        """Parser of the blocks of an input."""
        return partial(parse_block, options=self._options)

    def feature_name(self, column: int) -> str:
        """What a user calls a feature."""
        return f"feature {column + (not self._options.zero_based)}"


def iter_libsvm(
    path: str | os.PathLike[str],
    *,
    zero_based: bool = False,
    exact: bool = False,
    block_bytes: int | None = None,
) -> Iterator[tuple[Float64Array, CSRRows, int]]:
    """Read LIBSVM text in constant memory, from a file, maybe compressed, or "-", standard input.

    Values stay float64 if `exact`, to be scaled before they are rounded.

    Yields
    ------
    labels : ndarray of float64, shape (n_rows,)
    rows : CSRRows
        Values; ``n_features`` is 1 + the largest column seen so far.
    first_line : int
        Line number of the block's first line, from 1.
    """
    options = ParseOptions(zero_based=zero_based, exact=exact)
    n_rows = width = 0
    with TextInput(path) as text:

        def parse(block: TextBlock) -> tuple[ParsedBlock, int]:
            return parse_block(block, options), block.first_line

        for block, first_line in ordered_map(parse, text.blocks(block_bytes)):
            n_rows += len(block.rows)
            width = max(width, block.width)
            yield block.labels, replace(block.rows, n_features=width), first_line
        if not n_rows:
            raise InputError(f"{text.name} holds no rows; {LineEncoder.hint}")


def parse_block(block: TextBlock, options: ParseOptions) -> ParsedBlock:
    """Parse one block of text; a bad line raises InputError, unless it is to be skipped."""
    limit = NO_LIMIT if options.n_features is None else options.n_features
    text = np.frombuffer(block.text, dtype=np.uint8)
    # An upper bound: pages of an array that are never written take no memory.
    n_pairs = len(block.text) // MIN_PAIR_BYTES
    labels = np.empty(block.n_lines)
    indptr = np.zeros(block.n_lines + 1, dtype=np.int64)
    indices = np.empty(n_pairs, dtype=np.int32)
    values: np.ndarray = np.empty(n_pairs, dtype=np.float64 if options.exact else np.float32)
    parsed = compiled.ParsedRows(labels, indptr, indices, values)
    cursor = np.zeros(compiled.CURSOR_SIZE, dtype=np.int64)
    known: dict[int, float] = {}  # position -> number that the compiled parser asked for
    n_skipped = 0
    skipped: list[str] = []
    while True:
        expected = compiled.Expected(
            0 if options.zero_based else 1,
            limit,
            -1.0 if options.log1p else -np.inf,
            np.array(list(known), dtype=np.int64),
            np.array(list(known.values()), dtype=np.float64),
        )
        problem = compiled.parse_lines(text, expected, cursor, parsed)
        if problem == Problem.NONE:
            break
        if problem == Problem.UNDECIDED:
            known[int(cursor[TOKEN])] = _exact_number(block.text, int(cursor[TOKEN]))
            continue
        message = _message(block, problem, cursor)
        if not options.skip:
            raise InputError(message)
        n_skipped += 1
        if len(skipped) < EXAMPLES:
            skipped.append(message)
        cursor[compiled.AT] = block.text.index(b"\n", int(cursor[compiled.AT])) + 1
        cursor[compiled.LINE] += 1
    n_rows, width = int(cursor[compiled.ROWS]), int(cursor[compiled.WIDTH])
    indptr = indptr[: n_rows + 1]
    stored = slice(int(indptr[-1]))
    rows = CSRRows(values[stored], indices[stored], indptr, min(width, limit))
    n_dropped = int(cursor[compiled.DROPPED])
    return ParsedBlock(labels[:n_rows], rows, width, n_dropped, n_skipped, tuple(skipped))


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
    if problem == Problem.DUPLICATE_INDEX:
        reason = f"feature index {cursor[TOKEN]} stands twice in one line; keep one of them"
    else:
        token = _token(block.text, int(cursor[TOKEN]))
        shown = token[:_SHOWN_BYTES].decode("ascii", "backslashreplace")
        reason = _REASONS[problem].format(shown + "..." * (len(token) > _SHOWN_BYTES))
    return f"{block.name}, line {block.first_line + cursor[compiled.LINE]}: {reason}"


_REASONS = {
    Problem.LABEL: "label '{}' is not a number; a line is LABEL INDEX:VALUE INDEX:VALUE ...",
    Problem.LABEL_NOT_FINITE: "label '{}' is not finite; every row needs a finite number as label",
    Problem.LABEL_NOT_EXACT: "label '{}' is a whole number that float64 does not tell from its "
    "neighbours; number the classes anew",
    Problem.PAIR: "'{}' is not INDEX:VALUE; the index is a whole number, no blank around the colon",
    Problem.NEGATIVE_INDEX: "'{}' has a negative index; the first feature is 1 (0 if --zero-based)",
    Problem.ZERO_INDEX: "'{}' has index 0; give --zero-based if the first feature is called 0",
    Problem.INDEX_TOO_LARGE: f"'{{}}' has an index beyond {INT32_MAX}; number the features anew",
    Problem.VALUE: "the value of '{}' is not a number; correct or remove it",
    Problem.VALUE_NOT_FINITE: "the value of '{}' is not finite; impute it or leave the row out",
    Problem.VALUE_TOO_LARGE: "the value of '{}' is beyond float32 (3.4e38); use another unit",
    Problem.NO_LOG1P: "the value of '{}' has no log1p, it is not above -1; leave out --log1p",
}
