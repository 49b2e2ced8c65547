"""``ooc-fw warm-up``: nothing is left to compile for the commands that follow."""

import os
import subprocess
import sys

import pytest


@pytest.fixture
def program(tmp_path):
    """Runs the program with a place for compiled code that is empty at first."""
    cache = tmp_path / "compiled"
    cache.mkdir(mode=0o700)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "ooc_fw.cli.main", *map(str, arguments)],
            env=os.environ | {"OOC_FW_CACHE": str(cache), "NUMBA_DISABLE_JIT": "0"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )

    return run


def test_nothing_is_compiled_after_it(program, tmp_path):
    first = program("warm-up")
    assert first.stdout.startswith("compiled in ")
    assert str(tmp_path / "compiled") in first.stdout
    assert "compiling, which may take half a minute" in first.stderr
    again = program("warm-up")
    assert again.stdout.startswith("all was compiled before; the code is kept in ")
    assert "compiling" not in again.stderr
    assert "compiling" not in program("demo", "files").stderr
    options = ("--C", 10, "--landmarks", 100, "--threads", 2)
    trained = program("train", "files/train.h5", "-o", "model.h5", *options)
    assert "compiling" not in trained.stderr
