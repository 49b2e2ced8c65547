"""A checkpoint is a model; a run that goes on from one reaches its tolerance."""

import json
import logging
import os
import time
from dataclasses import replace

import numpy as np
import pytest

from ooc_fw import InputError, Status, TrainOptions, load_model, make_kernel, open_dataset
from ooc_fw.data.sources import ArraySource, CSRSource
from ooc_fw.problem import ClassificationProblem, NoveltyProblem, RegressionProblem
from ooc_fw.solver.plan import Session
from ooc_fw.solver.surroundings import Checkpoint
from ooc_fw.training.checkpoint import load_resumed
from ooc_fw.training.fit import fit
from tests.support.files import write_dense
from tests.support.methods import IN_TURN, SLOW, grid
from tests.support.reference import to_csr

RBF = make_kernel("rbf", gamma=0.5)
N_ROWS = 400


def make(task="classification", n_classes=2, n_rows=N_ROWS, kernel=RBF, sparse=False, **fields):
    """Noisy rows, so that there are many support vectors."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 3)).astype(np.float32)
    z = X[:, 0] + rng.normal(size=n_rows)
    source = CSRSource(to_csr(X)) if sparse else ArraySource(X)
    if task == "novelty":
        return NoveltyProblem(source, kernel, **fields)
    if task == "regression":
        return RegressionProblem(source, z, kernel, **fields)
    codes = np.searchsorted(np.quantile(z, np.arange(1, n_classes) / n_classes), z)
    return ClassificationProblem(source, codes, kernel, **fields)


def run(problem, path=None, calls=None, warm=None, every_s=0.0, rows=None, **options):
    """Train; a run of so many `calls` of its callback leaves a checkpoint."""
    left = iter(range(10**9) if calls is None else range(calls))
    checkpoint = None if path is None else Checkpoint(path, every_s, rows)
    session = Session([lambda state: next(left, None) is not None], checkpoint=checkpoint)
    given = TrainOptions(**{"C": 3.0} | options)
    if warm is not None:
        given = warm.options(given)
    return fit(problem, given, session, warm)


def objectives(fitted):
    return np.array([getattr(one, "dual", None) or one.rho / 2 for one in fitted.model.classifiers])


def assert_agrees(fitted, expected, options):
    """The same end, and objectives that differ by no more than the certified gaps say."""
    assert fitted.model.status == expected.model.status == Status.CONVERGED
    assert fitted.model.kind == expected.model.kind
    tol = options.get("tol", 1e-3)
    assert fitted.model.certified_gap <= 2 * tol
    np.testing.assert_allclose(objectives(fitted), objectives(expected), rtol=4 * tol)


TASKS = {
    "two classes": ({}, {"exact": True}),
    "sparse": ({"sparse": True}, {"exact": True}),
    "weights": ({"penalties": np.linspace(1, 5, N_ROWS)}, {"exact": True}),
    "three classes": ({"n_classes": 3}, {"exact": True}),
    "large pairs": ({"n_classes": 3}, {"method": "swap2"}),
    "landmarks": ({"n_rows": 3000}, {"landmarks": 30, "tol": 1e-5}),
    "classes with landmarks": ({"n_classes": 3}, {"landmarks": 30, "tol": 1e-5}),
    "novelty": ({"task": "novelty"}, {"exact": True, "C": 0.05}),
    "novelty with landmarks": ({"task": "novelty"}, {"landmarks": 30, "C": 0.05}),
    "regression": ({"task": "regression"}, {}),
    "regression with landmarks": ({"task": "regression"}, {"landmarks": 30, "tol": 1e-5}),
}


@pytest.mark.parametrize("name", TASKS)
def test_every_task(name, tmp_path):
    """Stopped at several moments: the file is a model that predicts, and the run goes on."""
    fields, options = TASKS[name]
    problem, path, calls = make(**fields), tmp_path / "run.ckpt", []
    session = Session([lambda state: calls.append(state.phase)])
    expected = fit(problem, TrainOptions(**{"C": 3.0} | options), session)
    found = 0
    for k in sorted({2, len(calls) // 3, len(calls) - 2}):
        path.unlink(missing_ok=True)
        run(problem, path, k, **options)
        if not path.exists():  # there was no model yet
            continue
        found += 1
        model = load_model(path)
        assert model.status == Status.RUNNING
        assert model.task == problem.task
        values = model.decision_function(problem.source)
        assert np.isfinite(values).all()
        assert np.ptp(values) > 0 or problem.task == "regression"  # at first the mean
        assert_agrees(run(problem, warm=load_resumed(path), **options), expected, options)
    assert found > 0
    assert list(tmp_path.iterdir()) in ([path], [])


CASES = [(method, lmo) for method, lmo, _ in IN_TURN]


@pytest.mark.parametrize(("method", "lmo"), grid([*CASES[::3], *CASES[1::3], *CASES[2::3]], 5))
def test_every_method(method, lmo, tmp_path):
    problem, path = make(n_rows=150), tmp_path / "run.ckpt"
    options = {"method": method, "lmo": lmo, "tol": 1e-1 if method in SLOW else 1e-3}
    expected = run(problem, **options)
    for k in (1, expected.solutions[0].iterations // 2):
        stopped = run(problem, path, max_iter=k, **options)
        assert stopped.solutions[0].iterations == k
        again = run(problem, path, warm=load_resumed(path), **options)
        assert again.solutions[0].iterations >= k
        assert_agrees(again, expected, options)


def test_the_certificate_of_a_checkpoint_bounds_its_gap(tmp_path):
    """Its weights are those of steps, whose gradient was rounded."""
    problem, path = make(), tmp_path / "run.ckpt"
    run(problem, path, 4, exact=True)
    (one,) = load_model(path).classifiers
    assert one.certified_gap is None
    assert one.alpha.sum() == pytest.approx(1, abs=1e-12)
    X, y = problem.source.read(0, N_ROWS).astype(np.float64), 2.0 * problem.codes - 1
    K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(2)) + 1
    alpha = np.zeros(N_ROWS)
    alpha[load_model(path).rows] = one.alpha
    gradient = y * (K @ (alpha * y)) + alpha / 3
    gap = 1 - gradient.min() / (alpha @ gradient)
    found = load_model(path).certify(X.astype(np.float32), problem.codes).certified_gap
    assert gap <= found <= gap + 1e-6


def test_draws_go_on(tmp_path):
    problem, path = make(), tmp_path / "run.ckpt"
    options = {"method": "fw", "lmo": "sampled", "tol": 1e-2}
    run(problem, path, max_iter=7, **options)
    draws = load_resumed(path).run["draws"]
    assert draws["iteration"] == 7
    assert draws["elapsed_s"] > 0
    fresh = np.random.default_rng(0)
    assert draws["generator"] != fresh.bit_generator.state
    assert json.loads(json.dumps(draws["generator"])) == draws["generator"]
    assert run(problem, warm=load_resumed(path), max_iter=7, **options).solutions[0].iterations == 7


def test_finished_pairs_are_not_trained_again(tmp_path):
    problem, path = make(n_classes=4), tmp_path / "run.ckpt"
    options = {"method": "swap2"}
    expected, told = run(problem, **options), []

    def stop(state):
        told.append(state.classifier)
        return state.classifier < 3

    run_files = Session([stop], checkpoint=Checkpoint(path, 0))
    fit(problem, TrainOptions(C=3.0, **options), run_files)
    known = [one.certified_gap is not None for one in load_model(path).classifiers]
    assert known == [True] * 3 + [False] * 3
    told.clear()
    session = Session([lambda state: told.append(state.classifier)])
    warm = load_resumed(path)
    again = fit(problem, warm.options(TrainOptions(C=3.0, **options)), session, warm)
    assert set(told) == {3, 4, 5}
    for k, (one, other) in enumerate(zip(again.solutions, expected.solutions, strict=True)):
        assert (one.iterations == 0) == (k < 3)
        assert one.rho / 2 == pytest.approx(other.objective, rel=2e-3)


def test_a_checkpoint_is_written_when_time_is_over(tmp_path):
    """The vectors of several classes are read from the data for it."""

    def wait(state):
        while deadline.left() > 0:
            time.sleep(0.01)

    path = tmp_path / "run.ckpt"
    options = TrainOptions(exact=True, method="swap2", max_time=0.5)
    session = Session([wait], checkpoint=Checkpoint(path, 0.0))
    deadline = session.deadline(options)
    assert fit(make(n_classes=3), options, session).model.status == Status.TIME_LIMIT
    assert load_model(path).status == Status.RUNNING


def test_rows_may_be_some_of_the_data(tmp_path):
    """The model has their numbers among all, and a run that goes on has them among its own."""
    problem, path = make(), tmp_path / "run.ckpt"
    places = 2 * np.arange(N_ROWS) + 1
    options = {"exact": True}
    run(problem, path, 4, rows=(places, 3 * N_ROWS), **options)
    model = load_model(path)
    assert (model.rows % 2 == 1).all()
    assert model.n_weighted == N_ROWS
    again = run(problem, warm=replace(load_resumed(path), rows=places), **options)
    assert_agrees(again, run(problem, **options), options)


@pytest.fixture
def checkpoint(tmp_path):
    problem, path = make(), tmp_path / "run.ckpt"
    run(problem, path, method="swap2", max_iter=3)
    return problem, path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"C": 2.0}, r"other options: C 3\.0 \(now 2\.0\)"),
        ({"method": "fw"}, r"other options: method 'swap2' \(now 'fw'\)"),
        ({"certify": False}, r"other options: certify True \(now False\)"),
        ({"seed": 1}, r"other options: seed 0 \(now 1\)"),
        ({"landmarks": 30, "method": "auto"}, "is of an exact model; leave out --landmarks"),
        (lambda p: {"kernel": make_kernel("rbf", gamma=3.0)}, "another kernel: gamma 0.5 .now 3.0"),
        (lambda p: {"source": ArraySource(p.source.read(0, N_ROWS) + 1)}, "other data: rows '"),
        (lambda p: {"codes": 1 - p.codes}, "other data: labels '"),
        (lambda p: {"penalties": np.full(N_ROWS, 3.0)}, "other data: penalties "),
    ],
)
def test_other_runs_are_refused_by_name(checkpoint, change, said):
    problem, path = checkpoint
    options = {"method": "swap2"}
    if callable(change):
        problem = replace(problem, **change(problem))
    else:
        options |= change
    with pytest.raises(InputError, match=rf"run.ckpt (was made with )?{said}"):
        run(problem, warm=load_resumed(path), **options)


def test_limits_may_change_and_what_auto_stands_for_is_the_same_option(checkpoint):
    problem, path = checkpoint
    limits = {"max_iter": 5, "max_time": 60.0, "threads": 2, "memory_limit": 1 << 30}
    fitted = run(problem, warm=load_resumed(path), method="swap2", **limits)
    assert fitted.solutions[0].iterations == 5
    run(problem, path, max_iter=1)
    run(problem, warm=load_resumed(path), method="corrective", lmo="sampled")


def test_a_file_is_known_by_size_and_time(tmp_path):
    file, moved, path = (tmp_path / name for name in ("data.h5", "moved.h5", "run.ckpt"))
    base = make()
    write_dense(file, base.source.read(0, N_ROWS), base.codes.astype(float), chunks=True)

    def run_file(file, **arguments):
        with open_dataset(file) as source:
            return run(replace(base, source=source), exact=True, **arguments)

    run_file(file, path=path, calls=4)
    os.rename(file, moved)
    assert run_file(moved, warm=load_resumed(path)).model.status == Status.CONVERGED
    os.utime(moved, ns=(0, 1))
    with pytest.raises(InputError, match=r"modified_ns \d+ \(now 1\)"):
        run_file(moved, warm=load_resumed(path))


def test_files_that_are_no_checkpoint(checkpoint, model_file):
    _, path = checkpoint
    with pytest.raises(InputError, match=r"there is no model file .*none\.ckpt"):
        load_resumed(path.with_name("none.ckpt"))
    with pytest.raises(InputError, match="is a model, and not a checkpoint"):
        load_resumed(model_file)
    old = path.with_name("old.ckpt")
    old.write_bytes(b"ooc-fw checkpoint 9 0123".ljust(2048, b"\0"))
    with pytest.raises(InputError, match=r"old\.ckpt"):
        load_resumed(old)


def test_a_checkpoint_that_cannot_be_written_is_a_warning(checkpoint, monkeypatch, caplog):
    """Said once, tried again each time; the old one stays."""
    problem, path = checkpoint
    before, tries = path.read_bytes(), []

    def fail(_):
        tries.append(0)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ooc_fw.system.files.flush_to_disk", fail)
    monkeypatch.setattr("ooc_fw.solver.loop._WALK_STEPS", 1)
    caplog.set_level(logging.WARNING)
    run(problem, path, warm=load_resumed(path), method="swap2", max_iter=20)
    assert len(tries) > 10
    (warning,) = [text for text in caplog.messages if str(path) in text]
    assert "No space left on device" in warning
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("every", [-1.0, float("nan"), float("inf")])
def test_an_interval_is_some_seconds(every):
    with pytest.raises(InputError, match="seconds apart"):
        Checkpoint("run.ckpt", every)
