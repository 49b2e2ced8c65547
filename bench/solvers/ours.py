"""Our methods, through the command line, as users run them.

Owns the translation of a spec into options of ``ooc-fw train`` or ``ooc-fw tune``. The time is that
of the whole process, from start to exit: interpreter, imports, reading and writing included.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

from bench.process import OOC_FW, run_measured
from bench.solvers.base import Figures, Parameters, Problem

REPORTED = (
    "kernel C gamma tol stopping status kind method lmo n_support objective rho primal dual "
    "gap_scope sampled_gap certified_gap pair_gap iterations kernel_evaluations passes "
    "rows_read bytes_read"
).split()


class OocFW:
    """Any options of ``ooc-fw train``: ``ooc-fw:method=partan,lmo=full,no-certify``."""

    name: ClassVar[str] = "ooc-fw"
    packages: ClassVar[tuple[str, ...]] = ()

    def command(self, problem: Problem, parameters: Parameters, model: Path) -> list[str]:
        """The command line that writes a model and prints JSON."""
        own: Parameters = {"C": repr(problem.C)}
        if problem.gamma is not None:
            own["gamma"] = repr(problem.gamma)
        return _command("train", problem, own | parameters, model)

    def parameters(self, given: dict[str, str]) -> Parameters:
        """Options as given; the command line checks them."""
        return {key.replace("_", "-"): value for key, value in given.items()}

    def run(self, problem: Problem, parameters: Parameters) -> Figures:
        """Train, then evaluate and check outside the clock."""
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model.h5"
            command = self.command(problem, parameters, model)
            child = run_measured(command, problem.timeout_s)
            report = json.loads(child.stdout)
            report |= report.get("best", {}) | report.get("refit", {})  # of a search
            figures = {key: report[key] for key in REPORTED if key in report}
            figures |= {
                "options": " ".join(part for part in command[3:] if part.startswith("-")),
                "seconds": child.seconds,
                "cpu_seconds": child.cpu_seconds,
                "peak_rss_bytes": child.peak_rss_bytes,
                **_judged(model, problem.test),
            }
            if problem.verify and (report["kernel"], report.get("kind")) == ("rbf", "exact"):
                figures |= _verified(model, problem.train)
        return figures


class Tune(OocFW):
    """Any options of ``ooc-fw tune``, which is told neither C nor kernel."""

    name: ClassVar[str] = "tune"

    def command(self, problem: Problem, parameters: Parameters, model: Path) -> list[str]:
        return _command("tune", problem, parameters, model)


def _command(verb: str, problem: Problem, parameters: Parameters, model: Path) -> list[str]:
    options = {"seed": str(problem.seed), "threads": str(problem.threads), **parameters}
    command = [*OOC_FW, verb, problem.train, "-o", str(model), "--json", "--quiet"]
    for key, value in options.items():
        command += [f"--{key}={value}" if value else f"--{key}"]
    return command


def _judged(model: Path, test: str) -> Figures:
    measures = json.loads(run_measured([*OOC_FW, "evaluate", model, test, "--json"]).stdout)
    names = ("accuracy", "balanced_accuracy", "roc_auc", "average_precision")
    return {name: measures[name] for name in names if measures.get(name) is not None}


def _verified(model: Path, train: str) -> Figures:
    # In a child, since numpy has no place in the process that measures others; see bench.process.
    child = run_measured([sys.executable, "-m", "bench.verify", model, train, "--json"])
    gaps: Figures = json.loads(child.stdout)
    return gaps
