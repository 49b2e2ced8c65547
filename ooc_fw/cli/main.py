"""Entry point of ``ooc-fw``: runs a command; if it fails, prints a message and sets the status.

`ooc_fw.cli.commands` lists the exit statuses. A signal gives 128 plus its number: 130 for Ctrl-C,
143 for SIGTERM, 129 for SIGHUP, 141 (SIGPIPE) if the reader of the output has gone.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import re
import sys
import time
import traceback
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from importlib.resources import files

from ooc_fw.cli.commands import COMMANDS, DONE, FAILED, USAGE, build_parser
from ooc_fw.system.errors import (
    InputError,
    OutOfTimeError,
    printable,
    raise_lost,
    raised,
    signal_of,
)
from ooc_fw.system.files import Stream
from ooc_fw.system.memory import address_limit

_ADDRESSES = 3 << 30
"""Bytes of addresses that libraries take on two processors; they fill a few hundred MiB."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its status; by default, `argv` are the arguments of the process."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None or (mode == "w" and getattr(stream, "closed", False)):
            setattr(sys, name, open(os.devnull, mode))
    with suppress(AttributeError):  # streams of notebooks lack this, and show all characters
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    results = Stream(sys.stdout, "standard output")
    try:
        with redirect_stdout(results), redirect_stderr(Stream(sys.stderr)), _messages_on_stderr():
            status = _run(argv)
            results.flush()
    except (KeyboardInterrupt, Exception) as error:
        message, status = _failure(error)
        if message:
            print(f"ooc-fw: {printable(message)}", file=Stream(sys.stderr))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # discard the rest: at exit, Python would print an error about it
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status


def _failure(error: BaseException) -> tuple[str, int]:
    """The message for an exception that ended a command, and the exit status."""
    if isinstance(error, BrokenPipeError):
        return "", 141
    if isinstance(error, KeyboardInterrupt) or raised:
        number = signal_of(error) if isinstance(error, KeyboardInterrupt) else raised[0]
        return "interrupted", 128 + number
    if isinstance(error, InputError | OutOfTimeError):
        return str(error), USAGE if isinstance(error, InputError) else FAILED
    code = getattr(error, "errno", None)
    # Under ulimit -v, and without more threads or processes, libraries fail in ways of their own.
    is_scarce = isinstance(error, MemoryError) or "start new thread" in str(error)
    if is_scarce or code == errno.ENOMEM or (code is None and address_limit()):
        more = "; raise the limit of ulimit -v" if address_limit() else ""
        return f"out of memory: {str(error) or type(error).__name__}{more}", FAILED
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror or error}", FAILED
    if os.environ.get("OOC_FW_TRACEBACK"):
        lines = "".join(traceback.format_exception(error)).splitlines()
        print(*map(printable, lines), sep="\n", file=Stream(sys.stderr))
    way_out = "it is an error of ooc-fw itself; OOC_FW_TRACEBACK=1 in the environment shows where"
    return f"{type(error).__name__}: {error}; {way_out}", FAILED


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as exit_request:  # argparse raises it after printing a help text
        return int(exit_request.code or 0)
    if getattr(args, "verbose", False):
        logging.getLogger("ooc_fw").setLevel(logging.INFO)
    if 0 < address_limit() < _ADDRESSES:  # OpenBLAS would try to allocate for ever
        raise InputError(
            f"ulimit -v allows {address_limit() >> 20} MiB of addresses, and libraries take "
            f"{_ADDRESSES >> 20} MiB, of which they fill few; raise it, and limit --memory"
        )
    args.started = time.perf_counter()  # before the imports, for which the user waits
    module, _, function = COMMANDS[args.command].runs.partition(".")
    if getattr(args, "stream", False):
        module = "stream"
    run = getattr(import_module(f"ooc_fw.cli.{module}"), function)
    raise_lost()
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    status: int = run(args)
    return status


@contextmanager
def _messages_on_stderr() -> Iterator[None]:
    """Print log messages and warnings of the library on standard error, a line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Sentence())
    logger = logging.getLogger("ooc_fw")
    level = logger.level
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            # Without room in /dev/shm joblib, which scikit-learn imports, has no processes.
            warnings.filterwarnings("ignore", ".*joblib will operate in serial mode")
            warnings.showwarning = lambda message, *_, **__: logger.warning("%s", message)
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Sentence(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        kind = "warning: " if record.levelno == logging.WARNING else ""
        return f"ooc-fw: {kind}{printable(record.getMessage())}"


def show_help(args: Namespace) -> int:
    """Print a guide, such as tutorial or gap; without TOPIC, list the guides."""
    folder = files("ooc_fw") / "guides"
    guides = sorted(path.name[:-3] for path in folder.iterdir() if path.name.endswith(".md"))
    topic = args.topic or "index"
    if topic not in guides:
        raise InputError(f"there is no guide {topic!r}; the topics are {', '.join(guides)}")
    text = (folder / f"{topic}.md").read_text(encoding="utf-8")
    print(re.sub(r"^(?:<!--.*\n|!\[.*\n\n?)", "", text, flags=re.MULTILINE), end="")
    return DONE
