"""One child process and what it cost, measured from outside, as the kernel counted it.

Imports nothing heavy: Linux lets a child inherit the peak memory of the process it was forked from,
so the parent has to be smaller than anything it measures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
OOC_FW = (sys.executable, "-m", "ooc_fw")  # the same code as the installed ``ooc-fw``


class ChildError(RuntimeError):
    """A child failed; the message is the last line it wrote to standard error."""


@dataclass(frozen=True)
class Measured:
    """A child that ran to its end."""

    stdout: str
    seconds: float  # wall time from start to exit, interpreter and imports included
    cpu_seconds: float  # user and system time of all its threads
    peak_rss_bytes: int


def run_measured(command: Sequence[str | Path], timeout_s: float | None = None) -> Measured:
    """Run a command, with absolute paths, from the project's root and wait for it.

    Python may keep bytecode, as an installer does: compiling the project takes 0.1 s of each start.
    The child is killed after `timeout_s`, which is a TimeoutError; a status other than 0 is a
    ChildError.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        child = subprocess.Popen(
            [str(part) for part in command],
            stdout=out,
            stderr=err,
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
        )
        timer = threading.Timer(timeout_s or threading.TIMEOUT_MAX, child.kill)
        timer.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)  # unlike Popen.wait, tells the costs
        except BaseException:
            child.kill()
            child.wait()
            raise
        finally:
            timer.cancel()
        seconds = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if timeout_s is not None and seconds >= timeout_s:
            raise TimeoutError(f"killed after {timeout_s:g} s")
        if child.returncode != 0:
            lines = _text(err).strip().splitlines() or [f"exit status {child.returncode}"]
            raise ChildError(lines[-1])
        return Measured(
            stdout=_text(out),
            seconds=seconds,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            peak_rss_bytes=usage.ru_maxrss * 1024,  # Linux counts in KiB
        )


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
