"""Our methods, through the command line, as users run them.

Owns the translation of a spec into options of ``ooc-fw train`` or ``ooc-fw tune``. The time is that
of the whole process, from start to exit: interpreter, imports, reading and writing included.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.limits import forget, limited, parse_bytes
from bench.process import OOC_FW, run_measured
from bench.solvers.base import Figures, Parameters, Problem

REPORTED = (
    "kernel C gamma tol stopping status kind method lmo n_support objective rho primal dual "
    "gap_scope sampled_gap certified_gap objective_gap pair_gap iterations kernel_evaluations "
    "work rows_read bytes_read"
).split()


@dataclass(frozen=True)
class OocFW:
    """Any options of ``ooc-fw train``, or of ``ooc-fw tune``, which is told neither C nor kernel.

    Such as ``ooc-fw:method=partan,lmo=full,no-certify``.
    """

    name: str = "ooc-fw"
    verb: str = "train"
    packages: tuple[str, ...] = ()

    def parameters(self, given: dict[str, str]) -> Parameters:
        """Options as given; the command line checks them."""
        return {key.replace("_", "-"): value for key, value in given.items()}

    def run(self, problem: Problem, parameters: Parameters) -> Figures:
        """Train, then evaluate and check outside the clock."""
        options = {"seed": problem.seed, "threads": problem.threads, **parameters}
        if self.verb == "train":
            options = {"C": problem.C, "gamma": problem.gamma, **options}
        told = [
            f"--{key}={value}" if value != "" else f"--{key}"
            for key, value in options.items()
            if value is not None
        ]
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model.h5"
            command = [
                *OOC_FW,
                self.verb,
                problem.train,
                *told,
                "--json",
                "--quiet",
                "-o",
                str(model),
            ]
            enforced = None
            if "memory" in options:
                forget(Path(problem.train))
                with limited(command, parse_bytes(options["memory"])) as (within, enforced):
                    child = run_measured(within, problem.timeout_s)
            else:
                child = run_measured(command, problem.timeout_s)
            report = json.loads(child.stdout)
            report |= report.get("best", {}) | report.get("refit", {})  # of a search
            judged = run_measured([*OOC_FW, "evaluate", model, problem.test, "--json"])
            measures = json.loads(judged.stdout)
            figures = {key: report[key] for key in REPORTED if key in report}
            figures |= {
                "options": " ".join(told),
                "limit_enforced": enforced,
                "seconds": child.seconds,
                "cpu_seconds": child.cpu_seconds,
                "peak_rss_bytes": child.peak_rss_bytes,
                **{name: measures.get(name) for name in ("accuracy", "roc_auc")},
            }
            if problem.verify and (report["kernel"], report.get("kind")) == ("rbf", "exact"):
                # In a child, since the process that measures others has to stay small.
                check = [sys.executable, "-m", "bench.verify", str(model), problem.train, "--json"]
                figures |= json.loads(run_measured(check).stdout)
        return figures
