"""Small data sets and the command line as a function, for all tests."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

# The first call of a compiled function may take seconds, so no example has a deadline.
settings.register_profile("dev", max_examples=25, deadline=None)
# What decides whether a change lands depends on the change alone: examples are drawn anew by those
# who run the tests ("dev", or "search" for many), and are the same each time in "ci".
_PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", derandomize=True, max_examples=30, **_PATIENT)
settings.register_profile("search", max_examples=200, **_PATIENT)
settings.register_profile("fast", derandomize=True, max_examples=5, **_PATIENT)

SLOW = ("grid", "process", "long")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help=f"leave out what is marked {SLOW}")
    parser.addoption("--long", action="store_true", help="take what is marked long, too")


def pytest_configure(config: pytest.Config) -> None:
    usual = "fast" if config.option.fast else "dev"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", usual))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow tests that were not asked for."""
    if config.option.long or config.option.markexpr:
        return
    left_out = SLOW if config.option.fast else ("long",)
    slow = [item for item in items if any(item.get_closest_marker(mark) for mark in left_out)]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


# Small products on several threads wait for each other far longer than they compute, as soon as
# there are more test processes than idle processors. Engines hold BLAS to one thread anyway.
threadpool_limits(1, user_api="blas")

# A runner started by nohup or in the background ignores some of these signals, and programs that
# tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _program_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that run in this process find it as large as one of their own, which it is not."""
    monkeypatch.setattr("ooc_fw.report.progress.LINE_SECONDS", 600.0)  # on a slow machine, too
    monkeypatch.setattr("ooc_fw.system.memory._program", None)
    monkeypatch.setattr("ooc_fw.system.memory._resident", lambda _: 128 << 20)
    monkeypatch.setattr("ooc_fw.system.memory._MORE_CODE_BYTES", 72 << 20)


class Table(NamedTuple):
    """Rows, and labels 3 (fewer) and -7."""

    X: np.ndarray
    y: np.ndarray


def make_table(n_rows: int, n_features: int, seed: int, density: float = 1.0) -> Table:
    """Two overlapping clouds, rounded so that text holds the values exactly."""
    rng = np.random.default_rng(seed)
    positive = rng.random(n_rows) < 0.4
    X = rng.normal(size=(n_rows, n_features)) + 1.2 * positive[:, None]
    X *= rng.random(X.shape) < density
    X = np.round(X * 64) / 64
    return Table(X.astype(np.float32), np.where(positive, 3.0, -7.0))


def libsvm_lines(X: np.ndarray, y: np.ndarray) -> str:
    """LIBSVM text with features counted from 1 and zeros left out."""
    lines = []
    for row, label in zip(X, y, strict=True):
        cells = (f"{j + 1}:{row[j]:.9g}" for j in np.flatnonzero(row))
        lines.append(" ".join([f"{label:g}", *cells]))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def table() -> Table:
    return make_table(n_rows=200, n_features=4, seed=0)


@pytest.fixture(scope="session")
def write_text(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[np.ndarray, np.ndarray], Path]:
    """Write rows and labels as a new LIBSVM file."""

    def write(X: np.ndarray, y: np.ndarray) -> Path:
        path = tmp_path_factory.mktemp("text") / "data.txt"
        path.write_text(libsvm_lines(X, y))
        return path

    return write


@pytest.fixture(scope="session")
def text_file(table: Table, write_text: Callable[[np.ndarray, np.ndarray], Path]) -> Path:
    return write_text(*table)


class Outcome(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str

    def done(self) -> Self:
        """Itself, after a check that the command succeeded."""
        assert self.status == 0, self.err
        return self

    @property
    def words(self) -> str:
        """What it printed, as one line, however it was wrapped."""
        return " ".join(self.out.split())

    def json(self) -> Any:
        """What the command that succeeded printed as JSON."""
        return json.loads(self.done().out)

    def assert_refused(self, *parts: str) -> None:
        """Check for one sentence on standard error that holds `parts`, and status 2."""
        assert self.status == 2
        assert self.out == ""
        assert self.err.count("\n") == 1
        for part in parts:
            assert part in self.err


@pytest.fixture
def ooc_fw(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command in this process: ``ooc_fw("train", path)``."""
    from ooc_fw.cli.main import main

    def run(*arguments: object) -> Outcome:
        capfd.readouterr()
        status = main([str(argument) for argument in arguments])
        return Outcome(status, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def data_file(text_file: Path) -> Path:
    """The table as a shuffled HDF5 file, scaled to [0, 1]."""
    from ooc_fw.cli.main import main

    path = text_file.with_name("train.h5")
    assert main(["convert", str(text_file), str(path), "--scale", "minmax"]) == 0
    return path


@pytest.fixture(scope="session")
def model_file(data_file: Path) -> Path:
    """A model of `data_file`."""
    from ooc_fw.cli.main import main

    path = data_file.with_name("model.h5")
    assert main(["train", str(data_file), "-o", str(path), "--C", "5", "--quiet"]) == 0
    return path
