"""Solvers that the benchmarks bring along, and limits that the kernel enforces."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from bench.limits import limited, parse_bytes
from bench.solvers import Problem
from bench.solvers.falkon import Falkon


def test_falkon_solves_its_system():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3)).astype(np.float32)
    y = np.where(X[:, 0] * X[:, 1] > 0, 7, 3)
    model = Falkon(Problem("", "", C=5.0, gamma=0.5), {"centres": 40, "iterations": 60}).fit(X, y)
    centres = X[np.sort(np.random.default_rng(0).permutation(300)[:40])]
    K = rbf_kernel(X.astype(float), centres.astype(float), gamma=0.5)
    G = rbf_kernel(centres.astype(float), gamma=0.5)
    weights = np.linalg.solve(K.T @ K + G / 5 + 1e-9 * np.eye(40), K.T @ np.where(y == 7, 1, -1))
    np.testing.assert_allclose(model.decision_function(X), K @ weights, atol=5e-3)
    assert (model.predict(X) == y).mean() > 0.9


@pytest.mark.process
def test_a_limit_is_enforced_or_said_not_to_be():
    command = [sys.executable, "-c", "print(len(b'x' * (300 << 20)))"]
    with limited(command, parse_bytes("100MiB")) as (within, enforced):
        code = subprocess.run(within, capture_output=True).returncode
    assert (code == 0) != enforced
