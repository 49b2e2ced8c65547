"""Systems without the calls of Linux: a process loses them, and then runs commands."""

import subprocess
import sys

import pytest

WITHOUT = """
import importlib, mmap, multiprocessing.resource_tracker, os, pkgutil, signal, sys
import dask, h5py, llvmlite.binding, numba, psutil, pyarrow.dataset, scipy.sparse, sklearn.svm

UNKNOWN = {
    os: "geteuid preadv pread pwrite sched_getaffinity sysconf fork statvfs O_CLOEXEC",
    signal: "SIGHUP SIGALRM SIGPIPE setitimer ITIMER_PROF pthread_sigmask SIG_BLOCK",
    mmap: "MAP_PRIVATE MAP_ANONYMOUS MAP_SHARED MADV_DONTNEED MADV_NOHUGEPAGE",
}
for module, names in UNKNOWN.items():
    for name in names.split():
        delattr(module, name)
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None

class Process:
    def memory_info(self):
        return type("memory", (), {"rss": 200 << 20, "peak_wset": 300 << 20})

psutil.Process = Process
sys.platform = "win32"
import ooc_fw
for module in pkgutil.walk_packages(ooc_fw.__path__, "ooc_fw."):
    if module.name != "ooc_fw.__main__":
        importlib.import_module(module.name)
from ooc_fw.cli.main import main
for command in sys.argv[1:]:
    assert main(command.split()) == 0, command
"""


@pytest.mark.process
def test_commands_run_without_what_windows_lacks(tmp_path):
    commands = "demo new", "train new/train.h5 -o m.h5 --memory 600MiB --log run.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *commands], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new" / "predictions.txt").stat().st_size > 0
    assert b'"rss_bytes": 209715200' in (tmp_path / "run.jsonl").read_bytes()
