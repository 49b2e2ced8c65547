import subprocess
import sys
from contextlib import ExitStack

import h5py
import numpy as np
import pytest

from ooc_fw.cli.main import main
from ooc_fw.data.labels import encode_labels
from ooc_fw.data.opening import open_source
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.model.record import Model
from ooc_fw.options import TrainOptions
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.plan import Session
from tests.support.landmarks import solve_landmarks
from tests.support.methods import grid


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


@pytest.fixture(params=grid([2, 3], quick=1))
def landmark_model(request, tmp_path):
    """Files of noisy rows of 2 or 3 classes, and of a landmark model of these rows."""
    rng = np.random.default_rng(request.param)
    X = rng.normal(size=(500, 4)).astype(np.float32)
    y = (X[:, : request.param] + rng.normal(size=(500, request.param))).argmax(axis=1) + 5.0
    with h5py.File(tmp_path / "noisy.h5", "w") as file:
        file["X"], file["y"] = X, y
    with open_source(str(tmp_path / "noisy.h5")) as source:
        classes, codes = encode_labels(source)
        problem = ClassificationProblem(
            source, codes, make_kernel("rbf", gamma=0.3), class_labels=classes
        )
        solution = solve_landmarks(problem, 20, TrainOptions(C=3.0), Session())
        known = {"kernel": problem.kernel, "C": 3.0, "classes": classes, "scaling": source.scaling}
        Model.of(solution, None, **known).save(tmp_path / "landmarks.h5")
    return tmp_path / "noisy.h5", tmp_path / "landmarks.h5"
