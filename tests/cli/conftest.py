import subprocess
import sys
from contextlib import ExitStack

import h5py
import numpy as np
import pytest

from ooc_fw.cli.main import main
from tests.support.methods import grid


@pytest.fixture
def program():
    """Start a command as a process, which ends with the test at the latest."""
    with ExitStack() as stack:

        def start(*arguments, **options):
            command = [sys.executable, "-m", "ooc_fw", *map(str, arguments)]
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


@pytest.fixture(params=grid([2, 3], quick=1))
def noisy(request, tmp_path):
    """A file of noisy rows of 2 or 3 classes."""
    rng = np.random.default_rng(request.param)
    X = rng.normal(size=(500, 4)).astype(np.float32)
    y = (X[:, : request.param] + rng.normal(size=(500, request.param))).argmax(axis=1) + 5.0
    with h5py.File(tmp_path / "noisy.h5", "w") as file:
        file["X"], file["y"] = X, y
    return tmp_path / "noisy.h5"


@pytest.fixture
def landmark_model(noisy):
    """Files of noisy rows and of a landmark model of these rows."""
    path = noisy.with_name("landmarks.h5")
    options = "--landmarks", "20", "--gamma", "0.3", "--C", "3", "--quiet"
    assert main(["train", str(noisy), "-o", str(path), *options]) == 0
    return noisy, path
