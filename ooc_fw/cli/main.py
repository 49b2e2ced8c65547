"""Entry point of ``ooc-fw``: the list of commands and what happens when one fails.

Owns exit statuses: 0 done, 1 failed, 2 a mistake in the input or the arguments, 130 interrupted by
Ctrl-C, 143 by SIGTERM, 129 by SIGHUP.
What a command does is in its own module.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

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
from ooc_fw.errors import InputError
from ooc_fw.interrupt import Terminated, signal_of, terminating

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

FAILED, USAGE = 1, 2


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
    try:
        with _messages_on_stderr(), terminating():
            args = build_parser().parse_args(argv)
            if getattr(args, "verbose", False):
                logging.getLogger("ooc_fw").setLevel(logging.INFO)
            load_numba_alone()
            status: int = COMMANDS[args.command].run(args)
            sys.stdout.flush()
            return status
    except SystemExit as exit_request:  # argparse, after printing a help text
        return int(exit_request.code or 0)
    except InputError as error:
        return _fail(str(error), USAGE)
    except KeyboardInterrupt as interrupt:
        word = "terminated" if isinstance(interrupt, Terminated) else "interrupted"
        return _fail(word, 128 + signal_of(interrupt))
    except BrokenPipeError:
        # The reader has gone. Python would complain when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _fail(f"{place}{error.strerror or error}", FAILED)
    except MemoryError as error:
        return _fail(f"out of memory: {error}", FAILED)


def _fail(message: str, status: int) -> int:
    print(f"ooc-fw: {message}", file=sys.stderr)
    return status


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
    print(f"ooc-fw: warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
