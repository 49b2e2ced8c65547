"""What all solvers share: the problem they are given, and how a peer is run.

`Solver` is what `bench.run` sees; `Peer` is a solver that fits arrays in RAM, inside a process of
its own (`bench.solvers.child`).
"""

from __future__ import annotations

import importlib.util
import json
import sys
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

from bench.process import run_measured

Parameters: TypeAlias = dict[str, str | int | float]
Figures: TypeAlias = dict[str, Any]
"""Flat results of one run; what a solver does not know is left out."""


@dataclass(frozen=True)
class Problem:
    """What to solve; the same for every solver."""

    train: str  # absolute path of a converted file
    test: str
    C: float
    gamma: float  # of the RBF kernel
    seed: int = 0
    threads: int = 1  # CPUs the process may use
    verify: bool = False  # whether to check gaps by brute force, after the clock has stopped
    target: int | None = None  # ordinary class, or target column, of tasks that have one
    timeout_s: float = 1800.0  # wall time after which a process is given up


class Solver(Protocol):
    """A named way to solve a problem."""

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]  # modules it needs beyond the project's own

    def parameters(self, given: dict[str, str]) -> Parameters:
        """Parameters from what a spec gives; ValueError for what makes no sense."""

    def run(self, problem: Problem, parameters: Parameters) -> Figures:
        """Solve once and measure; raises TimeoutError or `bench.process.ChildError`."""


def missing_packages(solver: Solver) -> list[str]:
    """Modules that a solver needs and this environment lacks."""
    return [name for name in solver.packages if importlib.util.find_spec(name) is None]


class Peer(ABC):
    """A solver with the ``fit`` and ``predict`` of scikit-learn.

    Subclasses give the class variables and `build`.
    """

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ("sklearn",)
    defaults: ClassVar[Parameters] = {}
    dtype: ClassVar[str] = "float64"  # of the rows it is given
    has_pair_gap: ClassVar[bool] = False  # whether it solves the L1-SVM on all rows

    def parameters(self, given: dict[str, str]) -> Parameters:
        """Defaults, replaced by what is given."""
        unknown = set(given) - set(self.defaults)
        if unknown:
            known = ", ".join(self.defaults) or "none"
            raise ValueError(f"unknown parameter {min(unknown)!r}; known are: {known}")
        return self.defaults | {key: type(self.defaults[key])(text) for key, text in given.items()}

    @abstractmethod
    def build(self, problem: Problem, parameters: Parameters) -> Any:
        """Make the estimator; called in the child, the place to import the package."""

    def run(self, problem: Problem, parameters: Parameters) -> Figures:
        """Fit in a child process."""
        request = {"solver": self.name, "parameters": parameters, "problem": asdict(problem)}
        command = [sys.executable, "-m", "bench.solvers.child", json.dumps(request)]
        child = run_measured(command, problem.timeout_s)
        figures: Figures = json.loads(child.stdout.splitlines()[-1])
        return figures
