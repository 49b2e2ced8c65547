"""What all solvers share: the problem they are given, and how a peer is run.

A `Peer` fits arrays in RAM, inside a process of its own (`bench.solvers.child`).
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from bench.process import run_measured

Parameters: TypeAlias = dict[str, Any]
"""Numbers and texts by name."""

Figures: TypeAlias = dict[str, Any]
"""Flat results of one run; what a solver does not know is left out."""


@dataclass(frozen=True)
class Problem:
    """What to solve; the same for every solver."""

    train: str  # absolute path of a converted file
    test: str
    C: float
    gamma: float | None  # of the RBF kernel; None if `ooc-fw train` is to find it
    seed: int = 0
    threads: int = 1  # CPUs the process may use
    verify: bool = False  # whether to check gaps by brute force, after the clock has stopped
    target: int | None = None  # ordinary class, or target column, of tasks that have one
    timeout_s: float = 1800.0  # wall time after which a process is given up


Build: TypeAlias = Callable[[Problem, Parameters], Any]
"""Makes an estimator; called in the child, and imports the package."""


def machine(module: str, name: str, *, seeded: bool = False) -> Build:
    """What makes an estimator of a package with the parameters as they are."""

    def build(problem: Problem, parameters: Parameters) -> Any:
        seed = {"random_state": problem.seed} if seeded else {}
        return getattr(importlib.import_module(module), name)(**parameters, **seed)

    return build


@dataclass(frozen=True)
class Peer:
    """A solver with the ``fit`` and ``predict`` of scikit-learn."""

    name: str
    build: Build
    defaults: Parameters = field(default_factory=dict)
    dtype: str = "float64"  # of the rows it is given
    packages: tuple[str, ...] = ("sklearn",)
    has_pair_gap: bool = False  # whether it solves the L1-SVM on all rows

    def parameters(self, given: dict[str, str]) -> Parameters:
        """Defaults, replaced by what is given."""
        unknown = set(given) - set(self.defaults)
        if unknown:
            known = ", ".join(self.defaults) or "none"
            raise ValueError(f"unknown parameter {min(unknown)!r}; known are: {known}")
        return self.defaults | {key: type(self.defaults[key])(text) for key, text in given.items()}

    def run(self, problem: Problem, parameters: Parameters) -> Figures:
        """Fit in a child process."""
        request = {"solver": self.name, "parameters": parameters, "problem": asdict(problem)}
        command = [sys.executable, "-m", "bench.solvers.child", json.dumps(request)]
        child = run_measured(command, problem.timeout_s)
        figures: Figures = json.loads(child.stdout.splitlines()[-1])
        return figures
