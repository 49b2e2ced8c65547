"""Runs that go on from a checkpoint: they reach the tolerance of those that were never stopped."""

import itertools
import logging
import os
from dataclasses import replace

import numpy as np
import pytest

from ooc_fw import InputError, Status, make_kernel, open_dataset
from ooc_fw.solver.shell import CheckpointPlan, load_checkpoint, save_checkpoint
from tests.support.files import write_dense, write_sparse
from tests.support.methods import IN_TURN, SLOW, grid
from tests.support.reference import DEFINITIONS, make_problem
from tests.support.solving import train_in_session


def rbf(**how):
    return make_problem(make_kernel("rbf", gamma=1.0), **how)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ckpt"


def train(problem, **arguments):
    return train_in_session(problem, **{"sample_size": 20} | arguments)


def assert_agrees(solution, expected):
    """The same end, and objectives that differ by no more than the certified gaps say."""
    assert solution.status is expected.status is Status.CONVERGED
    gaps = solution.certified_gap + expected.certified_gap
    assert solution.objective == pytest.approx(expected.objective, rel=gaps)


def assert_resumes(problem, path, choose=lambda n: {n // 2}, more=None, **options):
    """Stopped after any of some numbers of iterations, a run reaches its tolerance.

    One of few iterations leaves a checkpoint before each.
    """
    more = {} if more is None else more
    expected = train(problem, **options)
    for k in sorted(choose(expected.iterations) & set(range(expected.iterations))):
        every_s = 0 if k < 20 else 60
        stopped = train(problem, max_iter=k, checkpoint=path, every_s=every_s, **options)
        assert stopped.iterations == k  # and certified late it may have converged all the same
        assert_agrees(train(problem, resume=path, **options | more), expected)
    return expected


CASES = [(method, lmo) for method, lmo, _ in IN_TURN]


@pytest.mark.parametrize(("method", "lmo"), grid([*CASES[::3], *CASES[1::3], *CASES[2::3]], 5))
def test_resumed_run_ends_as_the_uninterrupted_one(method, lmo, path):
    problem = rbf(n_rows=150, overlap=2)
    options = {"method": method, "lmo": lmo, "tol": 1e-1 if method in SLOW else 1e-3}
    assert_resumes(problem, path, lambda n: {7, n // 2}, **options)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("kernel", "sparse"), grid([(name, k % 2 == 1) for k, name in enumerate(DEFINITIONS)])
)
def test_every_kernel_and_storage(kernel, sparse, path):
    """And other threads."""
    problem = make_problem(make_kernel(kernel, gamma=1.0), n_rows=800, density=0.7, overlap=2)
    options = {"method": "corrective", "lmo": "sampled", "tol": 1e-5}
    source = problem.source(sparse)
    ends, more = (lambda n: {0, 1, n - 1}), {"threads": 3}
    assert_resumes(problem, path, ends, more, source=source, **options)


@pytest.mark.parametrize("name", grid(["float32", "float64"], quick=1))
def test_resumed_run_whose_kernel_values_change_their_type(name, monkeypatch, path):
    if name == "float32":
        monkeypatch.setattr("ooc_fw.solver.kernel_rows._RIDGE_SHARE", 6e-5)  # from 47 vertices on
        problem = rbf(n_rows=500, C=1.0, overlap=2.0)
    else:
        problem = make_problem(make_kernel("rbf", gamma=0.3), n_rows=400, C=1e4, overlap=2.0)
    options = {"method": "corrective", "tol": 1e-5, "memory_limit": 4 << 30}
    assert_resumes(problem, path, lambda n: {1, n // 2, n - 1}, **options)
    assert load_checkpoint(path)[1]["active"]["rows"]["type"] == name
    train(problem, max_iter=0, checkpoint=path, **options)
    assert load_checkpoint(path)[1]["active"]["rows"]["type"] != name


@pytest.mark.parametrize("method", grid(["corrective", "swap2", "partan"], quick=1))
def test_a_cache_of_kernel_rows_goes_on_as_it_was(method, path, monkeypatch):
    monkeypatch.setattr("ooc_fw.solver.plan.memory_total", lambda: 0)
    monkeypatch.setattr("ooc_fw.system.memory._LEAST_KERNEL_BYTES", 4 * 50**2)
    options = {"method": method, "lmo": "sampled", "tol": 1e-1 if method in SLOW else 1e-3}
    problem = rbf(n_rows=200, overlap=2)
    assert len(assert_resumes(problem, path, **options).rows) > 60


def test_a_run_stopped_before_its_first_step_goes_on(path):
    """With kernel values of 16 bits the gradient is renewed at other times than without."""
    problem = rbf(n_rows=1000, overlap=0.5)
    options = {"method": "corrective", "lmo": "sampled", "memory_limit": 1 << 40}
    callbacks = [lambda state: state.phase != "start"]
    stopped = train(problem, checkpoint=path, callbacks=callbacks, **options)
    assert (stopped.status, stopped.iterations) == (Status.STOPPED, 0)
    assert_agrees(train(problem, resume=path, **options), train(problem, **options))


@pytest.mark.parametrize(("method", "every"), grid([("corrective", 1), ("partan", 97)], quick=1))
def test_a_run_may_be_stopped_again_and_again(method, every, path):
    """The file that it is resumed from is the one where checkpoints are left."""
    problem, resume = rbf(n_rows=3000, overlap=0.5), None
    options = {"method": method, "lmo": "sampled", "tol": 5e-2}
    expected = train(problem, **options)
    for stop in itertools.count(every, every):
        solution = train(problem, checkpoint=path, resume=resume, max_iter=stop, **options)
        if solution.iterations < stop:  # a stopped run may be certified, with other weights
            break
        resume = path
    assert_agrees(solution, expected)


@pytest.mark.parametrize(
    ("method", "phase"),
    [
        *grid([("cvm", "certify"), ("cvm", "train")], quick=1),
        pytest.param("swap2", "certify", marks=pytest.mark.long),
    ],
)
def test_stopped_from_outside_in_any_iteration_or_sweep(method, phase, path, caplog, rare_violator):
    """The state of passes and of what they leave out is kept too."""
    options = {"method": method, "lmo": "sampled", "sample_size": 2, "tol": 1e-3}
    caplog.set_level(logging.INFO, logger="ooc_fw.solver")
    calls = []
    expected = train(rare_violator, callbacks=[lambda state: calls.append(state.phase)], **options)
    assert "screening leaves" in caplog.text
    count = calls.count(phase)
    assert count > 1
    for n in (count // 2, count - 1):  # a run stopped in its last call may have converged
        left = iter([True] * (n - 1))

        def stop(state, left=left):
            return state.phase != phase or next(left, False)

        stopped = train(rare_violator, callbacks=[stop], checkpoint=path, **options)
        assert stopped.status is Status.STOPPED
        caplog.clear()
        assert_agrees(train(rare_violator, resume=path, **options), expected)
    assert "screening leaves" in caplog.text


@pytest.fixture
def checkpoint(path):
    problem = rbf(n_rows=200)
    train(problem, method="swap2", checkpoint=path, max_iter=3)
    return problem, path


AT_77 = np.arange(200) == 77


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"C": 2.0}, r"other options: C 1\.0 \(now 2\.0\)"),
        ({"method": "fw"}, r"other options: method 'swap2' \(now 'fw'\)"),
        ({"certify": False}, r"other options: certify True \(now False\)"),
        (lambda p: {"kernel": make_kernel("rbf", gamma=3.0)}, "another kernel: gamma 0.2 .now 3.0"),
        (lambda p: {"X": p.X + AT_77[:, None]}, "other data: rows '"),
        (lambda p: {"y": np.where(AT_77, -p.y, p.y)}, "other data: labels '"),
        (lambda p: {"X": p.X[:-1], "y": p.y[:-1]}, r"other data: n_rows 200 \(now 199\)"),
        (lambda p: {"X": p.X[:, :-1].copy()}, r"other data: n_features 5 \(now 4\)"),
    ],
)
def test_other_runs_are_refused_by_name(checkpoint, change, said):
    problem, path = checkpoint
    options = {"method": "swap2", "resume": path}
    if callable(change):
        problem = replace(problem, **change(problem))
    else:
        options |= change
    with pytest.raises(InputError, match=rf"run.ckpt was made with {said}"):
        train(problem, **options)


def test_budgets_may_change_and_what_auto_stands_for_is_the_same_option(checkpoint):
    problem, path = checkpoint
    solution = train(problem, method="swap2", resume=path, max_iter=5, max_time=60.0, threads=2)
    assert solution.iterations == 5
    train(problem, checkpoint=path, max_iter=1)
    train(problem, method="corrective", lmo="sampled", resume=path)


@pytest.mark.parametrize(("lmo", "write"), [("full", write_dense), ("sampled", write_sparse)])
def test_a_file_is_known_by_size_and_time(lmo, write, monkeypatch, path):
    """Its rows stay there."""
    monkeypatch.setattr("ooc_fw.system.memory._CACHE_BYTES", 0)
    problem = rbf(n_rows=150, density=0.7)
    file, moved = path.with_name("data.h5"), path.with_name("moved.h5")
    write(file, problem.X, problem.y.astype(float), chunks=True)

    def run(file, **arguments):
        with open_dataset(file) as source:
            return train(problem, source=source, method="cvm", lmo=lmo, **arguments)

    expected = run(file)
    run(file, checkpoint=path, max_iter=4)
    os.rename(file, moved)
    assert_agrees(run(moved, resume=path), expected)
    os.utime(moved, ns=(0, 1))
    with pytest.raises(InputError, match=r"modified_ns \d+ \(now 1\)"):
        run(moved, resume=path)


def test_too_little_memory_to_resume_is_said(checkpoint, monkeypatch):
    problem, path = checkpoint
    monkeypatch.setattr("ooc_fw.solver.plan.memory_total", lambda: 0)
    with pytest.raises(InputError, match=r"run of the checkpoint .* resume it where there is more"):
        train(problem, method="swap2", resume=path)


def test_file_gives_back_what_it_got(path):
    identity = {"options": {"C": 0.1, "max": None}}
    arrays = {
        "some": np.arange(5.0),
        "none": np.empty(0, dtype=np.int64),
        "flags": np.array([True, False]),
    }
    values = {"inf": float("inf"), "big": 2**100, "text": "é", "tenth": 0.1, "list": [1.5]}
    save_checkpoint(path, identity, {"a": arrays | values, "b": {}, "c": {"d": {"1": arrays}}})
    found_identity, found = load_checkpoint(path)
    assert found_identity == identity
    assert found["b"] == {}
    for group in (found["a"], found["c"]["d"]["1"]):
        for name, array in arrays.items():
            np.testing.assert_array_equal(group[name], array)
            assert group[name].dtype == array.dtype
    assert {name: found["a"][name] for name in values} == values


def test_damage_anywhere_is_one_sentence(checkpoint):
    _, path = checkpoint
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    cut = [whole[:n] for n in (0, 10, 100, 512, len(whole) // 2, len(whole) - 1)]
    for place in rng.integers(0, len(whole), 100).tolist():
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        if place >= 512 or whole[place] != 0:  # else it is behind the line of text
            cut.append(bytes(flipped))
    for data in cut:
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"run\.ckpt .*(damaged|not a checkpoint|of format)"):
            load_checkpoint(path)


def test_files_that_are_no_checkpoint(checkpoint, model_file, monkeypatch):
    _, path = checkpoint
    with pytest.raises(InputError, match=r"none\.ckpt cannot be read \(No such file"):
        load_checkpoint(path.with_name("none.ckpt"))
    with pytest.raises(InputError, match="is not a checkpoint"):
        load_checkpoint(model_file)
    monkeypatch.setattr("ooc_fw.solver.shell.FORMAT_VERSION", 99)
    with pytest.raises(InputError, match="is of format 9, and this ooc-fw reads 99"):
        load_checkpoint(path)


def test_a_checkpoint_that_cannot_be_written_is_a_warning(checkpoint, monkeypatch, caplog):
    """Said once, tried again each time; the old one stays."""
    problem, path = checkpoint
    before, tries = path.read_bytes(), []

    def fail(_):
        tries.append(0)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ooc_fw.system.files.flush_to_disk", fail)
    monkeypatch.setattr("ooc_fw.solver.loop._WALK_STEPS", 1)
    train(problem, method="swap2", resume=path, max_iter=20, checkpoint=path, every_s=0)
    assert len(tries) > 10
    (warning,) = [text for text in caplog.messages if str(path) in text]
    assert "No space left on device" in warning
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_checkpoint_that_would_replace_a_pipe_is_refused_before(path):
    os.mkfifo(path)
    with pytest.raises(InputError, match="is a pipe"):
        train(rbf(), checkpoint=path)
    for every in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="seconds apart"):
            CheckpointPlan("run.ckpt", every)
