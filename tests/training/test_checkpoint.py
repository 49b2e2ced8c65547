"""Resume: a run of any task that is stopped leaves a model, and goes on to its tolerance."""

import logging
import os
import shutil
import signal
import warnings
from contextlib import suppress
from dataclasses import replace
from itertools import count, groupby

import dask.array
import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from ooc_fw import (
    FrankWolfeOneClass,
    FrankWolfeSVC,
    FrankWolfeSVR,
    InputError,
    Status,
    TrainOptions,
    load_model,
    make_kernel,
)
from ooc_fw.data.sources import ArraySource, CSRSource
from ooc_fw.problem import ClassificationProblem, NoveltyProblem, RegressionProblem
from ooc_fw.report.runlog import read_runs
from ooc_fw.solver.plan import Session
from ooc_fw.solver.surroundings import Checkpoint
from ooc_fw.training.checkpoint import load_resumed
from ooc_fw.training.fit import fit
from tests.support.methods import IN_TURN, SLOW, grid
from tests.support.reference import to_csr
from tests.support.solving import ClockedSession

RBF = make_kernel("rbf", gamma=0.5)
N_ROWS = 400


def noisy_rows(n_rows=N_ROWS):
    """Rows and targets with so much noise that there are many support vectors."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 3)).astype(np.float32)
    return X, X[:, 0] + rng.normal(size=n_rows)


def in_classes(targets, n_classes):
    return np.searchsorted(np.quantile(targets, np.arange(1, n_classes) / n_classes), targets)


def make(task="classification", n_classes=2, n_rows=N_ROWS, sparse=False, kernel=RBF, **fields):
    X, targets = noisy_rows(n_rows)
    source = CSRSource(to_csr(X)) if sparse else ArraySource(X)
    if task == "novelty":
        return NoveltyProblem(source, kernel, **fields)
    if task == "regression":
        return RegressionProblem(source, targets, kernel, **fields)
    names = np.array(["a", "b", "c", "d"])[:n_classes]
    codes = in_classes(targets, n_classes)
    return ClassificationProblem(source, codes, kernel, class_labels=names, **fields)


def run(problem, path=None, *, resume=None, callbacks=(), **options):
    """Train with a checkpoint at `path` after every step, or from the one at `resume`."""
    checkpoint = None if path is None else Checkpoint(path, 0.0)
    resumed = None if resume is None else load_resumed(resume)
    given = TrainOptions(**{"C": 3.0} | options)
    given = given if resumed is None else resumed.options(given)
    return fit(problem, given, Session(callbacks, checkpoint=checkpoint), resumed)


def run_until(problem, path, last_call, how, **options):
    """Stop a run in a call of its callback; it may have left a checkpoint by then."""
    calls = count(1)

    def stop(state):
        number = next(calls)
        if number == last_call and how == "signal":
            signal.raise_signal(signal.SIGINT)
        if number == last_call and how == "time":
            session.stop_clock()
        return how != "callback" or number < last_call

    session = ClockedSession([stop], checkpoint=Checkpoint(path, 0.0))
    with suppress(KeyboardInterrupt):  # which a signal becomes before the first step
        fit(problem, TrainOptions(**{"C": 3.0, "max_time": 1000.0} | options), session)


def objectives(fitted):
    exact = fitted.model.kind == "exact"
    return np.array([one.rho / 2 if exact else one.dual for one in fitted.model.classifiers])


def assert_agrees(fitted, expected, tol=1e-3):
    """Both converged to models of one kind, whose objectives differ by no more than the gaps."""
    one, other = fitted.model, expected.model
    assert one.status == other.status == Status.CONVERGED
    assert (one.kind, one.task, one.kernel, one.C) == (other.kind, other.task, other.kernel, 3.0)
    np.testing.assert_array_equal(one.classes, other.classes)
    assert one.objective_gap <= 2 * tol
    np.testing.assert_allclose(objectives(fitted), objectives(expected), rtol=4 * tol)


EXACT, SPAN = {"exact": True}, {"landmarks": 30, "tol": 1e-5}
TASKS = {
    "two classes": ({}, EXACT),
    "sparse rows": ({"sparse": True}, EXACT),
    "weights": ({"penalties": np.linspace(1, 5, N_ROWS)}, EXACT),
    "three classes": ({"n_classes": 3}, EXACT),
    "large pairs": ({"n_classes": 3}, {"method": "swap2"}),
    "landmarks": ({"n_rows": 3000}, SPAN),
    "classes with landmarks": ({"n_classes": 3}, SPAN),
    "novelty": ({"task": "novelty"}, EXACT),
    "novelty with landmarks": ({"task": "novelty"}, SPAN),
    "columns": ({"sparse": True, "kernel": make_kernel("linear")}, {"tol": 1e-5}),
    "regression": ({"task": "regression"}, {}),
    "regression with landmarks": ({"task": "regression"}, SPAN),
}


@pytest.mark.parametrize("name", grid([*TASKS], 6))
def test_a_run_that_is_stopped_goes_on_to_its_tolerance(name, tmp_path):
    fields, options = TASKS[name]
    problem, path, calls = make(**fields), tmp_path / "run.ckpt", []
    expected = run(problem, callbacks=[lambda state: calls.append(state.phase)], **options)
    n_found = 0
    for how, last_call in (
        ("callback", 3),
        ("signal", len(calls) // 3),
        ("time", len(calls) - 2),
    ):
        path.unlink(missing_ok=True)
        run_until(problem, path, last_call, how, **options)
        if not path.exists():  # there was no model yet
            continue
        n_found += 1
        model = load_model(path)
        assert (model.status, model.task) == (Status.RUNNING, problem.task)
        values = model.decision_function(problem.source)
        assert np.isfinite(values).all()
        assert np.ptp(values) > 0 or problem.task == "regression"  # which begins at the mean
        assert_agrees(run(problem, resume=path, **options), expected, options.get("tol", 1e-3))
    assert n_found > 0
    assert list(tmp_path.iterdir()) in ([path], [])


@pytest.mark.parametrize(("method", "lmo"), grid([(method, lmo) for method, lmo, _ in IN_TURN]))
def test_every_method_goes_on_with_its_counts(method, lmo, tmp_path):
    problem, path = make(n_rows=100), tmp_path / "run.ckpt"
    options = {"method": method, "lmo": lmo, "tol": 0.2 if method in SLOW else 1e-2}
    run(problem, path, max_iter=3, **options)
    work = load_resumed(path).run["work"]
    assert work["iterations"] == 3
    assert min(work["seconds"], work["rows_read"], work["kernel_evaluations"]) > 0
    again = run(problem, resume=path, **options)
    assert again.model.status == Status.CONVERGED
    assert again.model.certified_gap <= options["tol"]
    (found,) = again.solutions
    assert found.iterations >= 3
    assert found.kernel_evaluations > work["kernel_evaluations"]


def test_a_run_that_ends_in_its_pilot_says_that_it_leaves_no_checkpoint(tmp_path, caplog):
    path = tmp_path / "run.ckpt"
    run(make(), path, max_iter=1, landmarks=60, certify=False)
    assert not path.exists()
    assert "before all landmarks were chosen: it leaves no checkpoint" in caplog.text


def test_no_run_has_more_landmarks_than_rows(tmp_path):
    problem, path = make(n_rows=60), tmp_path / "run.ckpt"
    run(problem, path, max_iter=2, landmarks=100)
    assert run(problem, resume=path, landmarks=100).model.kind == "landmarks"
    with pytest.raises(InputError, match="of a model with 60 landmarks"):
        run(problem, resume=path, landmarks=30)


def test_finished_pairs_are_not_trained_again(tmp_path):
    problem, path, told = make(n_classes=4), tmp_path / "run.ckpt", []
    run(problem, path, callbacks=[lambda state: state.classifier < 3], method="swap2")
    known = [one.certified_gap is not None for one in load_model(path).classifiers]
    assert known == [True] * 3 + [False] * 3
    tell = [lambda state: told.append(state.classifier)]
    again = run(problem, resume=path, callbacks=tell, method="swap2")
    assert set(told) == {3, 4, 5}
    assert [one.iterations == 0 for one in again.solutions] == known
    assert again.model.certified_gap <= 1e-3


@pytest.mark.parametrize(
    "own",
    [
        FrankWolfeSVC(C=5, exact=True),
        FrankWolfeOneClass(contamination=0.1),
        FrankWolfeSVR(landmarks=60, gamma=0.3, C=100),
    ],
    ids=lambda own: type(own).__name__,
)
def test_a_fit_is_resumed(own, tmp_path):
    """Some rows have no weight: the others keep their numbers. The seed is that of the file."""
    path, log = tmp_path / "run.ckpt", tmp_path / "log"
    X, y = noisy_rows()
    y = y > 0 if isinstance(own, FrankWolfeSVC) else y
    weights = np.arange(N_ROWS) % 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        first = clone(own).set_params(random_state=1, max_iter=3)
        first.fit(X, y, weights, checkpoint=path)
    model = load_model(path)
    assert (model.rows % 2 == 1).all()
    assert model.n_weighted == N_ROWS // 2
    again = own.fit(X, y, weights, resume=path, log=log)
    assert (again.fit_status_, again.model_.kind) == (0, model.kind)
    assert again.certified_gap_ <= 2e-3
    assert (again.support_ % 2 == 1).all()
    assert len(read_runs([log])) == 1
    with pytest.raises(InputError, match="other data"):
        own.fit(X + np.float32(0.01), y, weights, resume=path)


# -- what a checkpoint keeps -----------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path):
    problem, path = make(), tmp_path / "run.ckpt"
    run(problem, path, method="swap2", max_iter=3)
    return problem, path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"C": 2.0}, r"other options: C 3 \(now 2\)"),
        ({"landmarks": 30, "method": "auto"}, "is of an exact model; leave out --landmarks"),
        (lambda p: {"kernel": make_kernel("rbf", gamma=3.0)}, "another kernel: gamma 0.5 .now 3."),
        (lambda p: {"source": ArraySource(p.source.read(0, N_ROWS) + 1)}, "other data: rows;"),
        (lambda p: {"codes": 1 - p.codes}, "other data: labels;"),
        (lambda p: {"penalties": np.full(N_ROWS, 3.0)}, "other data: weights of classes"),
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
        run(problem, resume=path, **options)


def test_limits_may_change_and_what_auto_stands_for_is_the_same_option(checkpoint):
    problem, path = checkpoint
    limits = {"max_iter": 5, "max_time": 60.0, "threads": 2, "memory_limit": 1 << 30}
    assert run(problem, resume=path, method="swap2", **limits).solutions[0].iterations == 5
    run(problem, path, max_iter=1)
    run(problem, resume=path, method="corrective", lmo="sampled")


def test_a_file_is_known_by_size_and_time(data_file, model_file, tmp_path):
    data, moved, path = (tmp_path / name for name in ("d.h5", "moved.h5", "run.ckpt"))
    shutil.copy(data_file, data)
    FrankWolfeSVC(C=5).fit(data, checkpoint=path, checkpoint_every=1e-4)
    os.rename(data, moved)
    assert FrankWolfeSVC(C=5).fit(moved, resume=path).fit_status_ == 0
    os.utime(moved, ns=(0, 1))
    with pytest.raises(InputError, match=r"modified_ns \d+ \(now 1\)"):
        FrankWolfeSVC(C=5).fit(moved, resume=path)
    own, weights = FrankWolfeOneClass(gamma=1.0), np.arange(200) > 0
    own.fit(moved, sample_weight=weights, checkpoint=path, checkpoint_every=1e-4)
    with pytest.raises(InputError, match="other rows of weight 0"):
        own.fit(moved, sample_weight=weights[::-1], resume=path)
    with pytest.raises(InputError, match="not a checkpoint"):
        FrankWolfeSVC(C=5).fit(moved, resume=model_file)


@pytest.mark.parametrize("form", [np.asarray, csr_array, dask.array.asarray])
def test_rows_in_ram_are_known_by_their_values(form, tmp_path, monkeypatch):
    """Their sources are called by kind, and there are files of these names."""
    monkeypatch.chdir(tmp_path)
    for name in ("array", "sparse matrix"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "some").write_text("file")
    X, targets = noisy_rows()
    y = in_classes(targets, 2)
    FrankWolfeSVC(C=5).fit(form(X), y, checkpoint="run.ckpt", checkpoint_every=1e-4)
    with pytest.raises(InputError, match="other data: rows"):
        FrankWolfeSVC(C=5).fit(form(X[::-1].copy()), y, resume="run.ckpt")


def test_a_checkpoint_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    """It is said once, and tried again each time."""
    path = tmp_path / "folder" / "run.ckpt"
    path.parent.mkdir()
    existed = []

    def lose_the_folder(state):
        existed.append(path.exists())
        if state.iteration == 2:
            shutil.rmtree(path.parent, ignore_errors=True)
        if state.iteration == 5:
            path.parent.mkdir(exist_ok=True)

    caplog.set_level(logging.WARNING)
    run(make(), path, callbacks=[lose_the_folder], exact=True)
    (warning,) = [text for text in caplog.messages if str(path) in text]
    assert "No such file or directory" in warning
    assert [there for there, _ in groupby(existed)] == [False, True, False, True]
    load_model(path)
