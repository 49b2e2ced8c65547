"""Both tasks on made-up sets: a setting is chosen by one part and scored on another."""

from __future__ import annotations

import numpy as np
import pytest

from bench import tasks


@pytest.fixture
def made_up(monkeypatch):
    """A ring of ordinary rows with others in its middle, as every set."""
    rng = np.random.default_rng(0)

    def rows(n):
        X = rng.normal(size=(n, 2))
        y = np.where(rng.random(n) < 0.7, 1, 0)
        X[y == 1] *= 4 / np.linalg.norm(X[y == 1], axis=1)[:, None]
        return X.astype(np.float32), y

    monkeypatch.setattr(tasks, "load", lambda *_: (*rows(300), *rows(200)))
    monkeypatch.setattr(tasks, "ORDINARY", {"ring": 1})
    monkeypatch.setattr(tasks, "TARGETS", {"ring": 0})


@pytest.mark.parametrize(
    ("task", "machines"),
    [
        ("novelty", ["FrankWolfeOneClass", "OneClassSVM"]),
        ("regression", ["FrankWolfeSVR", "SVR", "FrankWolfeSVR, epsilon 0", "KernelRidge"]),
    ],
)
def test_table_of_a_task(made_up, capsys, task, machines):
    assert tasks.main([task, "--sets", "ring"]) == 0
    lines = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in capsys.readouterr().out.splitlines()[2:]
    ]
    assert [line[1] for line in lines] == machines
    assert all(line[0] == "ring" for line in lines)
    if task == "novelty":
        assert all(float(line[3]) > 0.95 for line in lines)
    else:  # without a tube, both machines solve the same problem but for the bias
        assert float(lines[2][3]) == pytest.approx(float(lines[3][3]), abs=0.1)


def test_the_validation_part_chooses(made_up):
    parts = tasks.regression_parts("ring", None, None)
    sizes = [len(parts.train), len(parts.validation[0]), len(parts.test[0])]
    assert sizes == [210, 45, 45]
    assert np.abs(parts.train.mean(axis=0)).max() < 1e-12
