"""LIBSVM text to labels and sparse rows, block by block.

Owns the wording of every parse error and the choice to raise or to skip. The grammar is in
`ooc_fw._core.libsvm`, the cutting of files into blocks in `ooc_fw.convert.text`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ooc_fw._core.libsvm import (
    AT,
    CURSOR_SIZE,
    DROPPED,
    INT32_MAX,
    LINE,
    ROWS,
    TOKEN,
    WIDTH,
    Problem,
    parse_lines,
)
from ooc_fw.convert.pipeline import default_threads, ordered_map
from ooc_fw.convert.text import BLOCK_BYTES, TextBlock, TextInput
from ooc_fw.data.labels import is_exact_label
from ooc_fw.data.rows import CSRRows, Float64Array
from ooc_fw.system.errors import InputError

logger = logging.getLogger(__name__)

NO_LIMIT = INT32_MAX + 1
EXAMPLES = 3
"""Skipped lines of a block that are reported word for word."""

MIN_PAIR_BYTES = 4
"""A blank, a digit, a colon and a digit."""

_TOKEN = re.compile(rb"[^\s#]*")
_SHOWN_BYTES = 40


@dataclass(frozen=True, slots=True)
class ParseOptions:
    """How text is read.

    Parameters
    ----------
    zero_based : bool
        Whether the first column is called 0, not 1.
    width_limit : int
        Columns from this one on are left out.
    log1p : bool
        Whether log1p will be taken, so that values must be above -1.
    on_error : {"raise", "skip"}
        What to do with a line that cannot be taken.
    exact : bool
        Whether values stay float64, to be scaled before they are rounded.
    """

    zero_based: bool = False
    width_limit: int = NO_LIMIT
    log1p: bool = False
    on_error: str = "raise"
    exact: bool = False

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip"):
            raise InputError(f"on_error must be 'raise' or 'skip', not {self.on_error!r}")


@dataclass(frozen=True, slots=True)
class ParsedBlock:
    """Rows of one block of text.

    Parameters
    ----------
    labels : ndarray of float64, shape (n_rows,)
        Labels as written.
    rows : CSRRows
        Values, with the least width that holds them.
    first_line : int
        Line number of the block's first line, from 1.
    width : int
        1 + largest column met, columns beyond the limit and explicit zeros included.
    dropped_values : int
        Values left out because their column is beyond the limit.
    n_skipped : int
        Lines left out because of an error.
    skipped : tuple of str
        What was wrong with the first few of them.
    """

    labels: Float64Array
    rows: CSRRows
    first_line: int
    width: int
    dropped_values: int
    n_skipped: int
    skipped: tuple[str, ...]


def iter_libsvm(
    path: str | os.PathLike[str],
    *,
    zero_based: bool = False,
    on_error: str = "raise",
    log1p: bool = False,
    exact: bool = False,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[tuple[Float64Array, CSRRows, int]]:
    """Read LIBSVM text in constant memory.

    Parameters
    ----------
    path : str or PathLike
        A file, plain or compressed, or "-" for standard input.
    zero_based : bool
        Whether the file's first column is called 0.
    on_error : {"raise", "skip"}
        Whether a bad line raises, or is logged as a warning and left out.
    log1p : bool
        Whether log1p will be taken: a value that is not above -1 then makes its line a bad one.
    exact : bool
        Whether values stay float64, to be scaled before they are rounded.
    block_bytes : int
        Text parsed at once.

    Yields
    ------
    labels : ndarray of float64, shape (n_rows,)
        Labels as written.
    rows : CSRRows
        Values; ``n_features`` is 1 + the largest column seen so far.
    first_line : int
        Line number of the block's first line, from 1.

    Raises
    ------
    InputError
        For a missing or damaged input, a bad line, or an input without any row.
    """
    options = ParseOptions(zero_based=zero_based, log1p=log1p, on_error=on_error, exact=exact)
    n_rows = width = 0
    with TextInput(path) as text:
        for block in ordered_map(
            parser(options), text.blocks(block_bytes), threads=default_threads()
        ):
            for message in block.skipped:
                logger.warning("skipped: %s", message)
            if block.n_skipped > len(block.skipped):
                logger.warning("skipped: %d more lines", block.n_skipped - len(block.skipped))
            n_rows += len(block.rows)
            width = max(width, block.width)
            rows = CSRRows(block.rows.data, block.rows.indices, block.rows.indptr, width)
            yield block.labels, rows, block.first_line
        if not n_rows:
            raise no_rows_error(text.name)


def no_rows_error(name: str) -> InputError:
    """Build the error for an input without any row."""
    return InputError(f"{name} holds no rows; a row is a line LABEL INDEX:VALUE INDEX:VALUE ...")


def parser(options: ParseOptions) -> Callable[[TextBlock], ParsedBlock]:
    """Give `parse_block` its options, for use in a map."""
    return lambda block: parse_block(block, options)


def parse_block(block: TextBlock, options: ParseOptions) -> ParsedBlock:
    """Parse one block of text.

    Raises
    ------
    InputError
        At the first bad line, unless `options` say to skip it.
    """
    text = np.frombuffer(block.text, dtype=np.uint8)
    n_pairs = len(block.text) // MIN_PAIR_BYTES  # at most; what is not filled takes no memory
    labels = np.empty(block.n_lines)
    indptr = np.zeros(block.n_lines + 1, dtype=np.int64)
    indices = np.empty(n_pairs, dtype=np.int32)
    values = np.empty(n_pairs, dtype=np.float64 if options.exact else np.float32)
    cursor = np.zeros(CURSOR_SIZE, dtype=np.int64)
    known: dict[int, float] = {}  # numbers the compiled parser asked for, by position
    n_skipped = 0
    skipped: list[str] = []
    while True:
        problem = parse_lines(
            text,
            0 if options.zero_based else 1,
            options.width_limit,
            -1.0 if options.log1p else -np.inf,
            np.array(list(known), dtype=np.int64),
            np.array(list(known.values()), dtype=np.float64),
            cursor,
            labels,
            indptr,
            indices,
            values,
        )
        if problem == Problem.NONE:
            break
        if problem == Problem.UNDECIDED:
            known[int(cursor[TOKEN])] = _exact_number(block.text, int(cursor[TOKEN]))
            continue
        message = _message(block, problem, cursor)
        if options.on_error == "raise":
            raise InputError(message)
        n_skipped += 1
        if len(skipped) < EXAMPLES:
            skipped.append(message)
        cursor[AT] = block.text.index(b"\n", int(cursor[AT])) + 1
        cursor[LINE] += 1
    n_rows = int(cursor[ROWS])
    n_stored = int(indptr[n_rows])
    width = int(cursor[WIDTH])
    return ParsedBlock(
        labels[:n_rows],
        CSRRows(
            values[:n_stored],
            indices[:n_stored],
            indptr[: n_rows + 1],
            min(width, options.width_limit),
        ),
        block.first_line,
        width,
        int(cursor[DROPPED]),
        n_skipped,
        tuple(skipped),
    )


def _token(text: bytes, at: int) -> bytes:
    match = _TOKEN.match(text, at)
    assert match is not None  # the pattern matches nothing, too
    return match.group()


def _exact_number(text: bytes, at: int) -> float:
    """Float64 nearest to the label or the value of the pair at `at`.

    A label that is a whole number, but none of float64, is NaN: it would be one with its neighbour.
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
    return f"{block.name}, line {block.first_line + cursor[LINE]}: {reason}"


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
