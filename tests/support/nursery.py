"""Commands in processes of their own that need not load libraries, and how they fail."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Ended(NamedTuple):
    """How a command ended."""

    status: int  # negative: the signal that killed it
    out: str
    err: str

    def assert_failed(self, *parts: object, status: tuple[int, ...] = (2, 3)) -> None:
        """Check for one sentence on standard error that holds `parts`, and an exit status."""
        assert self.status in status, self
        assert self.err.startswith("ooc-fw: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert self.out == ""
        for part in parts:
            assert str(part) in self.err


LOAD = """
import contextlib, json, os, resource, signal, sys, tempfile, time
from ooc_fw.cli.main import main
"""

WARM = """
with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
    text, data, model = (os.path.join(folder, name) for name in ("d.txt", "d.h5", "m.h5"))
    with open(text, "w") as file:
        file.writelines(f"{i % 2} 1:{i} 2:{i * i % 7}\\n" for i in range(50))
    for kind in ("--sparse", "--dense"):
        assert main(["convert", text, data, kind, "--quiet"]) == 0
        assert main(["train", data, "-o", model, "--quiet", "--threads", "1"]) == 0
"""

SERVE = """
def child(order, out, err):
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(order["folder"])
    if "file_bytes" in order:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_bytes"], resource.RLIM_INFINITY))
    exec(order.get("prelude", ""), {})
    sys.exit(main(order["arguments"]))

for line in sys.stdin:
    order = json.loads(line)
    pipes = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        child(order, pipes[0][1], pipes[1][1])
    for _, end in pipes:
        os.close(end)
    if "kill_after" in order:
        time.sleep(order["kill_after"])
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    texts = [open(begin).read() for begin, _ in pipes]
    print(json.dumps([status, *texts]), flush=True)
"""


class Nursery:
    """A process that has run the code `begin`, and whose children run a command each.

    They begin at once, without the loading of libraries. Otherwise they end as any process does,
    HDF5's own end included.
    """

    def __init__(self, begin: str = WARM) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", LOAD + begin + SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: object, folder: Path | str = ".", **order: Any) -> Ended:
        """Run a command of ``ooc-fw`` in a folder to its end.

        It may write files of no more than `file_bytes`, and run Python code, the `prelude`, first.
        It is killed after the seconds `kill_after`.
        """
        order["arguments"] = [str(argument) for argument in arguments]
        order["folder"] = os.path.abspath(folder)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return Ended(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
