"""Entry point of ``ooc-fw``: the commands, and the message and exit status when one fails.

`ooc_fw.cli.common` lists the exit statuses. A signal gives 128 plus its number: 130 for Ctrl-C, 143
for SIGTERM, 129 for SIGHUP, 141 (SIGPIPE) when nobody reads the output any more.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from typing import IO, Any

import ooc_fw
from ooc_fw._core.loading import load_numba_alone, noting_compilation
from ooc_fw.cli import (
    certify,
    convert,
    evaluate,
    export,
    guide,
    info,
    plan,
    predict,
    report,
    split,
    train,
    tune,
    verify,
    warm_up,
)
from ooc_fw.cli.common import FAILED, USAGE, Commands, Parser
from ooc_fw.system.errors import InputError, OutOfTimeError
from ooc_fw.system.interrupt import Terminated, signal_of, terminating

MODULES = (
    *(convert, split, info, plan, verify, train, tune, predict, evaluate, certify, export, report),
    guide,
    warm_up,
)
"""Modules of commands, in the order in which ``--help`` lists them."""

CLOSED_PIPE = 141


def build_parser() -> Parser:
    """Parser of all commands."""
    parser = Parser(
        prog="ooc-fw",
        description="Train exact kernel support vector machines on data larger than memory: "
        "convert LIBSVM text once, train with a certified duality gap, predict.",
    )
    parser.add_argument("--version", action="version", version=f"ooc-fw {ooc_fw.__version__}")
    commands = Commands(parser)
    for module in MODULES:
        module.add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the program's name; those of the process by default.

    Returns
    -------
    int
        Exit status.
    """
    _replace_closed_streams()
    results = _Stream(sys.stdout, name="standard output")
    messages = _Stream(sys.stderr, name=None)
    try:
        with redirect_stdout(results), redirect_stderr(messages):
            with _messages_on_stderr(), terminating():
                status = _run(argv)
                results.flush()
        _drop_unwritten()
        return status
    except InputError as error:
        return _fail(str(error), USAGE)
    except OutOfTimeError as error:
        return _fail(str(error), FAILED)
    except KeyboardInterrupt as interrupt:
        word = "terminated" if isinstance(interrupt, Terminated) else "interrupted"
        return _fail(word, 128 + signal_of(interrupt))
    except BrokenPipeError:
        _drop_unwritten()
        return CLOSED_PIPE
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _fail(f"{name}{error.strerror or error}", FAILED)
    except MemoryError as error:
        return _fail(f"out of memory: {error}", FAILED)


def program() -> int:
    """Run the command of this process, at whose end nobody looks for garbage in all it loaded."""
    status = main()
    gc.freeze()
    return status


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as exit_request:  # raised by argparse after it printed a help text
        return int(exit_request.code or 0)
    if getattr(args, "verbose", False):
        logging.getLogger("ooc_fw").setLevel(logging.INFO)
    load_numba_alone()
    quiet = getattr(args, "quiet", False)
    with nullcontext() if quiet else noting_compilation(_announce_compilation):
        status: int = args.run(args)
    return status


@functools.cache  # once
def _announce_compilation() -> None:
    begin = "\r\x1b[K" if sys.stderr.isatty() else ""  # in place of a bar that stands still
    print(
        f"{begin}ooc-fw: compiling, which may take half a minute, once for each installation "
        f"(ooc-fw warm-up does all of it ahead)",
        file=sys.stderr,
    )


def _fail(message: str, status: int) -> int:
    with suppress(OSError):
        print(f"ooc-fw: {message}", file=sys.stderr)
    _drop_unwritten()
    return status


def _replace_closed_streams() -> None:
    """Replace standard streams that were closed when the program began, which Python sets to None.

    Reading and writing them then fails where it happens, as in other programs. Messages are
    dropped.
    """
    for name, flags, mode in (
        ("stdin", os.O_WRONLY, "r"),
        ("stdout", os.O_RDONLY, "w"),
        ("stderr", os.O_WRONLY, "w"),
    ):
        if getattr(sys, name) is None:
            # This takes the lowest free descriptor, which a file of results could get otherwise.
            setattr(sys, name, open(os.open(os.devnull, flags), mode))


class _Stream:
    """A standard stream whose errors name it, or, without a name, are ignored.

    A command fails if its results are lost. It continues if its messages are lost, because the disk
    under a redirected standard error is full or its reader has gone: the model is worth more.
    """

    def __init__(self, stream: IO[str], name: str | None) -> None:
        self._stream = stream
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._stream, attribute)

    def write(self, text: str) -> int:
        with self._failing():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._failing():
            self._stream.flush()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._name is not None:
                error.filename = self._name
                raise


def _drop_unwritten() -> None:
    """Drop output that cannot be written, since Python would print an error for it at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "wb") as nowhere, suppress(OSError):
                os.dup2(nowhere.fileno(), stream.fileno())


@contextmanager
def _messages_on_stderr() -> Iterator[None]:
    """Print log messages and warnings of the library, a line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Sentence())
    logger = logging.getLogger("ooc_fw")
    level = logger.level
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = lambda message, *_, **__: logger.warning("%s", message)
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Sentence(logging.Formatter):
    """A line with the name of the program, and the word "warning" for a warning."""

    def format(self, record: logging.LogRecord) -> str:
        kind = "warning: " if record.levelno == logging.WARNING else ""
        return f"ooc-fw: {kind}{record.getMessage()}"


if __name__ == "__main__":
    sys.exit(program())
