"""One child process and what it cost.

Owns the measurement from outside: wall time from start to exit, CPU time and peak memory as the
kernel counted them. Imports nothing heavy: Linux lets a child inherit the peak memory of the
process it was forked from, so the parent has to be smaller than anything it measures.
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
OOC_FW = (sys.executable, "-m", "ooc_fw.cli.main")
"""The command line of the tool; the same code as the installed ``ooc-fw``."""


class ChildError(RuntimeError):
    """A child failed; the message is the last line it wrote to standard error."""


@dataclass(frozen=True)
class Measured:
    """A child that ran to its end.

    Parameters
    ----------
    stdout : str
        What it printed.
    seconds : float
        Wall time from start to exit, interpreter and imports included.
    cpu_seconds : float
        User and system time of all its threads.
    peak_rss_bytes : int
        Largest resident memory.
    """

    stdout: str
    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int


def run_measured(
    command: Sequence[str | Path],
    timeout_s: float | None = None,
    stdin: IO[bytes] | None = None,
) -> Measured:
    """Run a command from the project's root and wait for it.

    Parameters
    ----------
    command : sequence of str or Path
        Program and arguments; paths must be absolute.
    timeout_s : float or None
        Wall time after which the child is killed.
    stdin : file or None
        Given to the child as standard input and closed here; None for that of this process.

    Raises
    ------
    TimeoutError
        The child was killed.
    ChildError
        The child ended with a status other than 0.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        child = subprocess.Popen(
            [str(part) for part in command], stdin=stdin, stdout=out, stderr=err, cwd=ROOT
        )
        if stdin is not None:
            stdin.close()  # whoever writes to it has to notice when the child ends
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
