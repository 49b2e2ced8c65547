"""The gamma that a run finds: errors beside those of models without each row, and limits."""

import numpy as np
import pytest

from ooc_fw import FrankWolfeSVC, make_kernel, open_dataset
from ooc_fw.options import ModelOptions
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.plan import Session
from ooc_fw.system.errors import OutOfTimeError
from ooc_fw.training.gamma import _left_out, climb, differ, find_gamma
from ooc_fw.training.prepare import Weights, prepare


def nothing():
    """A search without a limit of time."""


def chessboard(n_rows=3000, squares=4):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(n_rows, 2)).astype(np.float32)
    return X, (np.floor(squares * X).sum(axis=1) % 2).astype(np.int64)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_a_row_is_judged_by_the_model_of_all_others(n_classes):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    codes = rng.integers(0, n_classes, 60) + 3 * (X[:, 0] > 0)
    codes = np.unique(codes, return_inverse=True)[1]
    penalties = rng.uniform(0.5, 5, 60)
    values = np.exp(-0.5 * np.square(X[:, None] - X).sum(axis=2))
    expected = []
    for row in range(60):
        others = np.delete(np.arange(60), row)
        matrix = values[np.ix_(others, others)] + 1 + np.diag(1 / penalties[others])
        targets = np.where(codes[others][:, None] == np.arange(codes.max() + 1), 1.0, -1.0)
        weights = np.linalg.solve(matrix, targets)
        expected.append(((values[row, others] + 1) @ weights).argmax())
    assert _left_out(values, codes, penalties).tolist() == expected


def test_gamma_rises_while_errors_fall():
    errors = {1.0: 5.0, 4.0: 3.0, 16.0: 2.0, 64.0: 2.0}
    first = make_kernel("rbf", gamma=1.0)
    tried = {first: np.array([5.0])}
    climb(tried, lambda kernel: np.array([errors[kernel.gamma]]))
    assert [kernel.gamma for kernel in tried] == [*errors]
    few, more = np.repeat([1.0, 0.0], [10, 90]), np.repeat([1.0, 0.0], [14, 86])
    assert differ(more, few, 1.9)  # four standard errors of 1 / 2 each
    assert not differ(more, few, 2.1)
    assert not differ(few, few, 0.0)


@pytest.mark.parametrize(("C", "squares", "times"), [(1, 4, 64), (1, 0, 1), (10, 0, 0.25)])
def test_a_search_finds_what_the_rows_need(C, squares, times):
    """A chessboard needs a large gamma, and a noisy linear rule that C overrates a small one."""
    X, y = chessboard(squares=squares)
    if squares == 0:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(2000, 20 if C > 1 else 10)).astype(np.float32)
        y = X[:, 0] + rng.normal(size=2000) > 0
    found = prepare(open_dataset(X, y), "classification", ModelOptions(C=C))
    auto = prepare(open_dataset(X, y), "classification", ModelOptions(C=C, gamma="auto"))
    ratio = found.problem.kernel.gamma / auto.problem.kernel.gamma
    assert (ratio >= times) if times > 1 else (ratio == times)
    assert f"gamma {found.problem.kernel.gamma:.4g}: " in found.words
    assert ("times auto" in found.words) == (ratio != 1)
    assert auto.words == ""


@pytest.mark.parametrize("case", ["few rows", "many classes", "no time", "other kernel", "task"])
def test_gamma_stays_auto_where_a_sample_cannot_tell(case):
    X, y = chessboard(400 if case == "few rows" else 3000)
    if case == "many classes":
        y = np.arange(3000) % 70
    options = ModelOptions(
        max_time=1e3 if case != "no time" else 0.5,
        kernel="linear" if case == "other kernel" else "rbf",
    )
    task = "regression" if case == "task" else "classification"
    session = Session()
    found = prepare(open_dataset(X, y), task, options, Weights(), session)
    auto = prepare(open_dataset(X, y), task, ModelOptions(kernel=options.kernel, gamma="auto"))
    if case != "no time":
        assert found.problem.kernel == auto.problem.kernel
        assert found.words == ""


@pytest.mark.parametrize("n_checks", [1, 2, 3, 4])
def test_at_the_end_of_the_time_the_best_gamma_so_far_is_taken(n_checks):
    X, y = chessboard()
    problem = ClassificationProblem(open_dataset(X), y, make_kernel("rbf", gamma=1.0))
    calls = []

    def check():
        calls.append(0)
        if len(calls) > n_checks:
            raise OutOfTimeError("the time is over")

    if n_checks < 3:  # one for the sample, and one for each gamma
        with pytest.raises(OutOfTimeError):
            find_gamma(problem, 1.0, 0, check)
        return
    kernel, words = find_gamma(problem, 1.0, 0, check)
    assert kernel.gamma == {3: 1.0, 4: 16.0}[n_checks]  # 4 is not clearly better than 1
    assert f"best of {n_checks - 1} " in words


def test_weights_of_rows_count():
    """Rows that weigh next to nothing say nothing of gamma."""
    X, y = chessboard()
    noise = np.random.default_rng(1).integers(0, 2, 3000)
    light = np.arange(3000) % 2 == 0
    weights = Weights(None, np.where(light, 1e-6, 1.0))
    source = open_dataset(X, np.where(light, noise, y))
    ratio = [
        prepare(source, "classification", ModelOptions(gamma=gamma), weights).problem.kernel.gamma
        for gamma in ("search", "auto")
    ]
    assert ratio[0] >= 4 * ratio[1]


def test_estimators_search_only_if_told_to():
    X, y = chessboard(2000)
    auto = FrankWolfeSVC().fit(X, y)
    found = FrankWolfeSVC(gamma="search").fit(X, y)
    assert found.get_params()["gamma"] == "search"
    assert found.model_.kernel.gamma >= 4 * auto.model_.kernel.gamma
    assert found.score(*chessboard(2500)) > auto.score(*chessboard(2500))
