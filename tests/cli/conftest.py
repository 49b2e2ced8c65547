from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack

import pytest

from ooc_fw.cli.main import main


@pytest.fixture
def program():
    """Start a command as a process, which ends with the test at the latest."""
    with ExitStack() as stack:

        def start(*arguments, **options):
            command = [sys.executable, "-m", "ooc_fw.cli.main", *map(str, arguments)]
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            process = stack.enter_context(subprocess.Popen(command, **streams | options))
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture(scope="package")
def sure_model(data_file, tmp_path_factory):
    """A model of `data_file` that gives probabilities."""
    path = tmp_path_factory.mktemp("model") / "sure.h5"
    assert main(["train", str(data_file), "-o", str(path), "--probability", "--quiet"]) == 0
    return path
