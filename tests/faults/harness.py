"""Commands run where they may be killed or starved, and what they must say when they fail."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np


class Ended(NamedTuple):
    """How a command ended."""

    status: int  # negative: the signal that killed it
    out: str
    err: str
    seconds: float

    def assert_failed(self, *parts: object, status: tuple[int, ...] = (2, 3)) -> None:
        """Check for one sentence on standard error that holds `parts`, and an exit status."""
        assert self.status in status, self
        assert self.err.startswith("ooc-fw: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert self.out == ""
        for part in parts:
            assert str(part) in self.err


NURSERY = """
import contextlib, json, os, resource, signal, sys, tempfile, time
from ooc_fw.cli.main import main

with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
    text, data, model = (os.path.join(folder, name) for name in ("d.txt", "d.h5", "m.h5"))
    with open(text, "w") as file:
        file.writelines(f"{i % 2} 1:{i} 2:{i * i % 7}\\n" for i in range(50))
    for kind in ("--sparse", "--dense"):
        assert main(["convert", text, data, kind, "--quiet"]) == 0
        assert main(["train", data, "-o", model, "--quiet", "--threads", "1"]) == 0

def child(order, out, err):
    os.dup2(out, 1)
    os.dup2(err, 2)
    if "file_bytes" in order:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_bytes"], resource.RLIM_INFINITY))
    exec(order.get("prelude", ""), {})
    sys.exit(main(order["arguments"]))

for line in sys.stdin:
    order = json.loads(line)
    pipes = os.pipe(), os.pipe()
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        child(order, pipes[0][1], pipes[1][1])
    for _, end in pipes:
        os.close(end)
    if "kill_after" in order:
        time.sleep(order["kill_after"])
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    seconds = time.monotonic() - started
    texts = [open(begin).read() for begin, _ in pipes]
    print(json.dumps([status, *texts, seconds]), flush=True)
"""


class Nursery:
    """A process with everything loaded, whose children run a command each and may be killed.

    They begin at once, so that what is met at a random moment is work and not the loading of
    libraries. Otherwise they end as any process does, HDF5's own end included.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: object, **order: Any) -> Ended:
        """Run a command of ``ooc-fw`` to its end.

        It may be killed after `kill_after` seconds, write files of no more than `file_bytes`, and
        run Python code, the `prelude`, first.
        """
        order["arguments"] = [str(argument) for argument in arguments]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return Ended(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def arrays(path: Path) -> list[bytes]:
    """What a converted file holds, but for the time at which it was made."""
    found: list[bytes] = []

    def add(_: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            found.append(np.asarray(node[...]).tobytes())

    with h5py.File(path) as file:
        file.visititems(add)
    return found
