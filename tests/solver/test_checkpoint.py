"""Runs that go on from a checkpoint: the same to the last bit as those that were never stopped."""

import itertools
import logging
import os

import numpy as np
import pytest

import ooc_fw.solver.kernel_rows
import ooc_fw.solver.setup
import ooc_fw.system.memory
from ooc_fw.data.sources import open_source
from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.options import TrainOptions
from ooc_fw.solver.checkpoint import (
    CheckpointPlan,
    load_checkpoint,
    save_checkpoint,
)
from ooc_fw.solver.loop import solve
from ooc_fw.solver.state import Status
from ooc_fw.solver.steps import STEP_RULES
from ooc_fw.system.errors import InputError
from ooc_fw.testing.files import write_dense, write_sparse
from ooc_fw.testing.reference import SmallProblem, make_problem

METHODS = pytest.mark.parametrize("method", STEP_RULES)
LMOS = pytest.mark.parametrize("lmo", ["full", "sampled"])
SLOW = {"fw", "partan"}


def train(problem, source=None, **arguments):
    names = ("callbacks", "checkpoint", "resume")
    keywords = {name: arguments.pop(name) for name in names if name in arguments}
    options = TrainOptions(**{"C": problem.C, "sample_size": 20} | arguments)
    source = problem.source() if source is None else source
    return solve(source, problem.y, problem.kernel, options, **keywords)


def assert_same(solution, expected):
    """All that goes into a model file, and the course that led there."""
    np.testing.assert_array_equal(solution.rows, expected.rows)
    np.testing.assert_array_equal(solution.alpha, expected.alpha)
    np.testing.assert_array_equal(solution.labels, expected.labels)
    for name in (
        "status", "objective", "rho", "sampled_gap", "certified_gap", "pair_gap",
        "iterations", "steps",
    ):  # fmt: skip
        assert getattr(solution, name) == getattr(expected, name), name


def rare_violator(n_rows=1500):
    """A problem whose sweeps find what a sample of two rows misses."""
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=n_rows, overlap=0.1)
    X, y = problem.X.copy(), problem.y
    X[1234] = X[y == -1].mean(axis=0)
    y[1234] = 1
    return SmallProblem(problem.kernel, X, y, problem.C)


# -- bit for bit ---------------------------------------------------------------------------------


@LMOS
@METHODS
def test_resumed_run_equals_the_uninterrupted_one(method, lmo, tmp_path):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=200, overlap=2)
    options = {"method": method, "lmo": lmo, "tol": 1e-1 if method in SLOW else 1e-3}
    expected = train(problem, **options)
    path = tmp_path / "run.ckpt"
    for k in sorted({0, 1, 7, expected.iterations // 2} & set(range(expected.iterations))):
        stopped = train(problem, max_iter=k, checkpoint=CheckpointPlan(path), **options)
        assert stopped.iterations == k
        assert stopped.status is Status.MAX_ITER
        assert_same(train(problem, resume=path, **options), expected)


@LMOS
@METHODS
def test_checkpoints_do_not_alter_a_run(method, lmo, tmp_path):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=200)
    options = {"method": method, "lmo": lmo, "tol": 1e-4, "max_iter": 60}
    expected = train(problem, **options)
    plan = CheckpointPlan(tmp_path / "run.ckpt", every_s=0)
    assert_same(train(problem, checkpoint=plan, **options), expected)
    assert [file.name for file in tmp_path.iterdir()] == ["run.ckpt"]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_and_storage(kernel, sparse, tmp_path):
    """And other threads: the blocks computed again are none of those computed before."""
    problem = make_problem(make_kernel(kernel, gamma=1.0), n_rows=1500, density=0.7, overlap=2)
    options = {"method": "corrective", "lmo": "sampled", "tol": 1e-5}
    expected = train(problem, source=problem.source(sparse), **options)
    path = tmp_path / "run.ckpt"
    for k in (1, expected.iterations - 1):
        train(
            problem,
            source=problem.source(sparse),
            max_iter=k,
            checkpoint=CheckpointPlan(path),
            **options,
        )
        resumed = train(problem, source=problem.source(sparse), resume=path, threads=3, **options)
        assert_same(resumed, expected)


def changing_type(monkeypatch, name):
    """A problem on which kernel values change their type in the middle of a run."""
    if name == "float32":
        monkeypatch.setattr(ooc_fw.solver.kernel_rows, "_RIDGE_SHARE", 6e-5)  # from 47 vertices on
        return make_problem(make_kernel("rbf", gamma=1.0), n_rows=900, C=1.0, overlap=2.0)
    return make_problem(make_kernel("rbf", gamma=0.3), n_rows=600, C=1e4, overlap=2.0)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_resumed_run_whose_kernel_values_change_their_type(name, monkeypatch, tmp_path):
    problem = changing_type(monkeypatch, name)
    options = {"method": "corrective", "tol": 1e-5, "memory_limit": 4 << 30}
    expected = train(problem, **options)
    path = tmp_path / "run.ckpt"
    types = []
    for k in range(expected.iterations):
        train(problem, max_iter=k, checkpoint=CheckpointPlan(path), **options)
        types.append(load_checkpoint(path)[1]["active"]["rows_type"])
        assert_same(train(problem, resume=path, **options), expected)
    assert types[0] != types[-1] == name


@pytest.mark.parametrize("method", ["corrective", "swap2"])
def test_a_run_with_a_limit_of_support_vectors(method, tmp_path):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=3000, overlap=2)
    options = {"method": method, "lmo": "sampled", "tol": 1e-2, "max_support": 700}
    expected = train(problem, **options)
    assert expected.status is Status.SUPPORT_LIMIT
    path = tmp_path / "run.ckpt"
    for k in {1, expected.iterations // 2, expected.iterations - 1}:
        train(problem, max_iter=k, checkpoint=CheckpointPlan(path), **options)
        assert_same(train(problem, resume=path, **options), expected)


def test_a_run_stopped_before_its_first_step_takes_the_same_course(tmp_path):
    """With kernel values of 16 bits the gradient is renewed at other times than without."""
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=3000, overlap=0.5)
    options = {
        "method": "corrective",
        "lmo": "sampled",
        "tol": 1e-3,
        "memory_limit": 1 << 40,
    }
    expected = train(problem, **options)
    path = tmp_path / "run.ckpt"
    stopped = train(
        problem,
        checkpoint=CheckpointPlan(path),
        callbacks=[lambda state: state.phase != "start"],
        **options,
    )
    assert stopped.status is Status.INTERRUPTED
    assert stopped.iterations == 0
    assert_same(train(problem, resume=path, **options), expected)


@pytest.mark.parametrize(("method", "every"), [("corrective", 1), ("partan", 37), ("swap2", 31)])
def test_a_run_may_be_stopped_again_and_again(method, every, tmp_path):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=3000, overlap=0.5)
    options = {"method": method, "lmo": "sampled", "tol": 5e-2, "max_iter": None}
    expected = train(problem, **options)
    path, resume = tmp_path / "run.ckpt", None
    for stop in itertools.count(every, every):
        solution = train(
            problem, checkpoint=CheckpointPlan(path), resume=resume, **options | {"max_iter": stop}
        )
        if solution.iterations < stop:  # a stopped run may be certified, with other weights
            break
        resume = path
    assert_same(solution, expected)


@pytest.mark.parametrize("phase", ["train", "certify"])
@pytest.mark.parametrize("method", ["cvm", "swap2"])
def test_stopped_from_outside_in_any_iteration_or_sweep(method, phase, tmp_path, caplog):
    """The state of sweeps and of screening is kept too."""
    problem = rare_violator()
    options = {"method": method, "lmo": "sampled", "sample_size": 2, "tol": 1e-3}
    caplog.set_level(logging.INFO, logger="ooc_fw.solver")
    calls = []
    expected = train(problem, callbacks=[lambda state: calls.append(state.phase)], **options)
    assert "screening leaves" in caplog.text
    path = tmp_path / "run.ckpt"
    count = calls.count(phase)
    assert count > 1
    for n in sorted({1, count // 2, count}):
        left = [n]

        def stop(state, left=left):
            left[0] -= state.phase == phase
            return left[0] > 0

        stopped = train(problem, callbacks=[stop], checkpoint=CheckpointPlan(path), **options)
        assert stopped.status is Status.INTERRUPTED
        assert_same(train(problem, resume=path, **options), expected)


@pytest.mark.parametrize("write", [write_dense, write_sparse])
@LMOS
def test_rows_on_disk(lmo, write, monkeypatch, tmp_path):
    monkeypatch.setattr(ooc_fw.system.memory, "_CACHE_BYTES", 0)
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=300, density=0.7)
    file = write(tmp_path / "data.h5", problem.X, problem.y.astype(float), chunks=True)
    path = tmp_path / "run.ckpt"
    options = {"method": "cvm", "lmo": lmo, "tol": 1e-5}
    with open_source(file) as source:
        expected = train(problem, source=source, **options)
    with open_source(file) as source:
        train(problem, source=source, checkpoint=CheckpointPlan(path), max_iter=4, **options)
    with open_source(file) as source:
        resumed = train(problem, source=source, resume=path, **options)
    assert_same(resumed, expected)


@pytest.mark.parametrize("method", ["corrective", "cvm", "swap2", "partan"])
def test_a_cache_of_kernel_rows_goes_on_as_it_was(method, tmp_path, monkeypatch):
    """Which rows are held decides in which order sums are formed."""
    monkeypatch.setattr(ooc_fw.solver.setup, "memory_total", lambda: 0)
    monkeypatch.setattr(ooc_fw.system.memory, "_LEAST_KERNEL_ROWS", 4 * 50**2)
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=250, overlap=2)
    options = {"method": method, "lmo": "sampled", "tol": 5e-2 if method in SLOW else 1e-3}
    expected = train(problem, **options)
    assert len(expected.rows) > 60
    path = tmp_path / "run.ckpt"
    for k in sorted({1, expected.iterations // 2, expected.iterations - 1}):
        train(problem, max_iter=k, checkpoint=CheckpointPlan(path), **options)
        assert_same(train(problem, resume=path, **options), expected)


def test_a_resumed_run_may_leave_checkpoints_in_the_same_file(tmp_path):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=300)
    path = tmp_path / "run.ckpt"
    plan = CheckpointPlan(path, every_s=0)
    options = {"method": "swap2", "tol": 1e-4}
    expected = train(problem, **options)
    train(problem, checkpoint=plan, max_iter=10, **options)
    assert_same(train(problem, checkpoint=plan, resume=path, **options), expected)
    assert load_checkpoint(path)[1]["progress"]["iteration"] > 10
    assert_same(train(problem, resume=path, **options), expected)


# -- which run is it? ----------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=200)
    path = tmp_path / "run.ckpt"
    train(problem, method="swap2", checkpoint=CheckpointPlan(path), max_iter=3)
    return problem, path


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"C": 2.0}, r"C 1\.0 \(now 2\.0\)"),
        ({"tol": 1e-2}, r"tol 0\.001 \(now 0\.01\)"),
        ({"method": "fw"}, r"method 'swap2' \(now 'fw'\)"),
        ({"lmo": "sampled"}, r"lmo 'full' \(now 'sampled'\)"),
        ({"seed": 1}, r"seed 0 \(now 1\)"),
        ({"certify": False}, r"certify True \(now False\)"),
    ],
)
def test_other_options_are_refused_by_name(checkpoint, option, said):
    problem, path = checkpoint
    with pytest.raises(InputError, match=rf"run.ckpt was made with other options: {said}"):
        train(problem, **{"method": "swap2", "resume": path} | option)


def test_budgets_may_change(checkpoint):
    problem, path = checkpoint
    solution = train(problem, method="swap2", resume=path, max_iter=5, max_time=60.0, threads=2)
    assert solution.iterations == 5


def test_what_auto_stands_for_is_the_same_option(tmp_path):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=200)
    path = tmp_path / "run.ckpt"
    train(problem, checkpoint=CheckpointPlan(path), max_iter=1)
    train(problem, method="corrective", lmo="sampled", resume=path)


def test_another_kernel_is_refused(checkpoint):
    problem, path = checkpoint
    other = SmallProblem(make_kernel("rbf", gamma=3.0), problem.X, problem.y, problem.C)
    with pytest.raises(InputError, match=r"another kernel: gamma 0\.2 \(now 3\.0\)"):
        train(other, method="swap2", resume=path)


def changed(problem, how):
    X, y = problem.X.copy(), problem.y.copy()
    if how == "a value":
        X[77, 2] += 1
    elif how == "a label":
        y[77] *= -1
    elif how == "fewer rows":
        X, y = X[:-1], y[:-1]
    else:
        X = X[:, :-1].copy()
    return SmallProblem(problem.kernel, X, y, problem.C)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("a value", "rows '"),
        ("a label", "labels '"),
        ("fewer rows", r"n_rows 200 \(now 199\)"),
        ("fewer columns", r"n_features 5 \(now 4\)"),
    ],
)
def test_other_data_are_refused(checkpoint, how, said):
    problem, path = checkpoint
    with pytest.raises(InputError, match=f"run.ckpt was made with other data: .*{said}"):
        train(changed(problem, how), method="swap2", resume=path)


def test_a_file_is_known_by_size_and_time(tmp_path):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=200)
    file = write_dense(tmp_path / "data.h5", problem.X, problem.y.astype(float), chunks=True)
    path = tmp_path / "run.ckpt"
    with open_source(file) as source:
        train(problem, source=source, checkpoint=CheckpointPlan(path), max_iter=1)
    moved = tmp_path / "moved.h5"
    os.rename(file, moved)
    with open_source(moved) as source:
        train(problem, source=source, resume=path)
    os.utime(moved, ns=(0, 1))
    with open_source(moved) as source:
        with pytest.raises(InputError, match=r"modified_ns \d+ \(now 1\)"):
            train(problem, source=source, resume=path)


# -- the file ------------------------------------------------------------------------------------


def test_file_gives_back_what_it_got(tmp_path):
    path = tmp_path / "run.ckpt"
    identity = {"options": {"C": 0.1, "max": None}}
    arrays = {
        "some": np.arange(5.0),
        "none": np.empty(0, dtype=np.int64),
        "flags": np.array([True, False]),
    }
    values = {"inf": float("inf"), "big": 2**100, "text": "é", "tenth": 0.1, "list": [1.5]}
    save_checkpoint(path, identity, {"a": {**arrays, **values}, "b": {}})
    found_identity, found = load_checkpoint(path)
    assert found_identity == identity
    assert set(found) == {"a", "b"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(found["a"][name], array)
        assert found["a"][name].dtype == array.dtype
    assert {name: found["a"][name] for name in values} == values


def test_damage_anywhere_is_one_sentence(checkpoint):
    _, path = checkpoint
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    cut = [whole[:n] for n in (0, 10, 100, 512, len(whole) // 2, len(whole) - 1)]
    for place in rng.integers(0, len(whole), 100).tolist():
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        if place < 512 and whole[place] == 0:
            continue  # behind the line of text
        cut.append(bytes(flipped))
    for data in cut:
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"run\.ckpt .*(damaged|not a checkpoint|of format)"):
            load_checkpoint(path)


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"none\.ckpt cannot be read \(No such file"):
        load_checkpoint(tmp_path / "none.ckpt")


def test_a_model_is_no_checkpoint(model_file):
    with pytest.raises(InputError, match="is not a checkpoint"):
        load_checkpoint(model_file)


def test_a_newer_format_is_refused(checkpoint, monkeypatch):
    _, path = checkpoint
    monkeypatch.setattr("ooc_fw.solver.checkpoint.FORMAT_VERSION", 99)
    with pytest.raises(InputError, match="is of format 4, and this ooc-fw reads 99"):
        load_checkpoint(path)


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(checkpoint, monkeypatch, caplog):
    problem, path = checkpoint
    before = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ooc_fw.system.files._flush_to_disk", full)
    train(problem, method="swap2", resume=path, checkpoint=CheckpointPlan(path, every_s=0))
    warnings = [text for text in caplog.messages if "No space left" in text]
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_too_little_memory_to_resume_is_said(checkpoint, monkeypatch):
    problem, path = checkpoint
    monkeypatch.setattr(ooc_fw.solver.setup, "memory_total", lambda: 0)
    with pytest.raises(InputError, match=r"run of the checkpoint .* resume it where there is more"):
        train(problem, method="swap2", resume=path)


@pytest.mark.parametrize("every", [-1.0, float("nan"), float("inf")])
def test_unusable_plan(every):
    with pytest.raises(InputError, match="seconds apart"):
        CheckpointPlan("run.ckpt", every)
