"""Entry point of ``ooc-fw``: the list of commands and what happens when one fails.

Owns exit statuses: 0 done, 1 failed, 2 a mistake in the input or the arguments, 3 out of time
before there was a model, 130 interrupted by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP, 141 when nobody
reads the output any more, as other programs end by SIGPIPE. Owns what is done about standard
streams that are closed or cannot be written to.
What a command does is in its own module.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import IO, Any, NoReturn

from ooc_fw._core.loading import load_numba_alone
from ooc_fw.cli import (
    certify,
    convert,
    demo,
    evaluate,
    info,
    plan,
    plot,
    predict,
    report,
    train,
    tune,
    verify,
)
from ooc_fw.system.errors import InputError, OutOfTimeError
from ooc_fw.system.interrupt import Terminated, signal_of, terminating

COMMANDS = {
    "convert": convert,
    "info": info,
    "plan": plan,
    "verify": verify,
    "train": train,
    "tune": tune,
    "predict": predict,
    "evaluate": evaluate,
    "certify": certify,
    "report": report,
    "plot": plot,
    "demo": demo,
}

FAILED, USAGE, OUT_OF_TIME, CLOSED_PIPE = 1, 2, 3, 141


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one sentence, like all others."""

    def error(self, message: str) -> NoReturn:
        """Raise the usage error as a user's mistake."""
        raise InputError(f"{message}; see {self.prog} --help")


def build_parser() -> Parser:
    """Parser of all commands."""
    parser = Parser(
        prog="ooc-fw",
        description="Train exact kernel support vector machines on data larger than memory: "
        "convert LIBSVM text once, train with a certified duality gap, predict.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in COMMANDS.values():
        module.add_parser(commands)
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
        return _fail(str(error), OUT_OF_TIME)
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


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as exit_request:  # argparse, after printing a help text
        return int(exit_request.code or 0)
    if getattr(args, "verbose", False):
        logging.getLogger("ooc_fw").setLevel(logging.INFO)
    load_numba_alone()
    status: int = COMMANDS[args.command].run(args)
    return status


def _fail(message: str, status: int) -> int:
    with suppress(OSError):  # nobody listens
        print(f"ooc-fw: {message}", file=sys.stderr)
    _drop_unwritten()
    return status


def _replace_closed_streams() -> None:
    """Put something in place of standard streams that were closed when the program began.

    Python has None for them. Input and output fail where they are used, as in other programs;
    messages are dropped.
    """
    for name, flags, mode in (
        ("stdin", os.O_WRONLY, "r"),
        ("stdout", os.O_RDONLY, "w"),
        ("stderr", os.O_WRONLY, "w"),
    ):
        if getattr(sys, name) is None:
            # The lowest free descriptor, so that no file of results takes its place.
            setattr(sys, name, open(os.open(os.devnull, flags), mode))


class _Stream:
    """A standard stream whose failures name it, or, without a name, are dropped.

    Results that are lost end a command. Messages that are lost, because the disk under a redirected
    standard error is full or its reader has gone, do not: the model is worth more.
    """

    def __init__(self, stream: IO[str], name: str | None) -> None:
        self._stream = stream
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._stream, attribute)

    def write(self, text: str) -> int:
        """Write text; a failure is treated as the class says."""
        with self._failing():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what waits; a failure is treated as the class says."""
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
    """Drop output that cannot be written, about which Python would complain at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "wb") as nowhere, suppress(OSError):
                os.dup2(nowhere.fileno(), stream.fileno())


@contextmanager
def _messages_on_stderr() -> Iterator[None]:
    """Show what the library logs and its warnings as one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Sentence())
    logger = logging.getLogger("ooc_fw")
    level = logger.level
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = _show_warning
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Sentence(logging.Formatter):
    """A line that says which program speaks, and whether it warns."""

    def format(self, record: logging.LogRecord) -> str:
        kind = "warning: " if record.levelno >= logging.WARNING else ""
        return f"ooc-fw: {kind}{record.getMessage()}"


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    with suppress(OSError):  # nobody listens
        print(f"ooc-fw: warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
