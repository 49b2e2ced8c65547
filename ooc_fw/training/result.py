"""How a run went, as numbers and words for its log, ``--json`` and summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ooc_fw.data.sources import RowSource
from ooc_fw.model.pairs import BinaryClassifier, Classifier, worst_gap
from ooc_fw.options import TrainOptions
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.state import Solution
from ooc_fw.training.fit import Fit

_OBJECTIVES = ("objective", "primal", "dual")


def describe(fitted: Fit, problem: ClassificationProblem, options: TrainOptions) -> dict[str, Any]:
    """How the run went: gaps, None for what is not known or makes no sense.

    Of several binary classifiers, counts are sums and gaps those of the worst; ``machines`` has
    each.
    """
    model, source, kernel = fitted.model, problem.source, problem.kernel
    classifiers = [_classifier(own) for own in model.classifiers]
    several, n_support = len(classifiers) > 1, len(model.support_vectors)
    if fitted.landmarks is None:
        work = _exact_work([pair.solution for pair in fitted.pairs], source)
        for own, pair in zip(classifiers, fitted.pairs, strict=True):
            own |= {"status": str(pair.solution.status), "iterations": pair.solution.iterations}
            own["seconds"] = pair.solution.seconds
    else:
        names = "iterations", "kernel_evaluations", "rows_read", "bytes_read", "sweep_seconds"
        work = {name: getattr(fitted.landmarks, name) for name in names}
        work |= dict.fromkeys(("method", "lmo", "rho", "pair_gap", "steps"))
    result: dict[str, Any] = {
        "status": model.status,
        "kind": model.kind,
        "gap_scope": model.gap_scope,
        "kernel": kernel.name,
        "gamma": kernel.gamma,
        "C": options.C,
        "tol": options.tol,
        "stopping": options.stopping,
        "n_rows": source.n_rows,
        "n_features": source.n_features,
        "n_classes": len(model.classes),
        "n_support": n_support,
        **{name: None if several else classifiers[0][name] for name in _OBJECTIVES},
        "sampled_gap": model.sampled_gap,
        "certified_gap": model.certified_gap,
        **work,
        "passes": work["kernel_evaluations"] / (source.n_rows * n_support),
    }
    return result | ({"machines": classifiers} if several else {})


def _exact_work(solutions: Sequence[Solution], source: RowSource) -> dict[str, Any]:
    """What exact classifiers cost, and what only they have."""
    first, several = solutions[0], len(solutions) > 1
    return {
        "method": first.method,
        "lmo": first.lmo,
        "rho": None if several else first.rho,
        "pair_gap": worst_gap(solution.pair_gap for solution in solutions),
        "iterations": sum(solution.iterations for solution in solutions),
        "steps": {
            str(kind): sum(solution.steps[kind] for solution in solutions) for kind in first.steps
        },
        "kernel_evaluations": sum(solution.kernel_evaluations for solution in solutions),
        "rows_read": source.rows_read if several else first.rows_read,
        "bytes_read": source.bytes_read if several else first.bytes_read,
        "sweep_seconds": None if several else first.sweep_seconds,
    }


def _classifier(own: Classifier) -> dict[str, Any]:
    """Classes, size, objectives and gaps of a binary classifier.

    Of an exact one with gap d, the weights divided by rho (1 - d) have margin 1 and a primal
    objective of at most 1 / (2 rho (1 - d)^2). From d = 1 on rounding may hide rho and the dual.
    """
    primal: float | None
    dual: float | None
    if isinstance(own, BinaryClassifier):
        gap, least = own.certified_gap, 0.5 / own.rho
        primal = None if gap is None or gap >= 1 else least / (1 - gap) ** 2
        dual = least if gap is None or gap < 1 else None
    else:
        primal, dual = own.primal, own.dual
    return {
        "negative": own.negative,
        "positive": own.positive,
        "n_support": len(own.alpha),
        "certified_gap": own.certified_gap,
        "sampled_gap": own.sampled_gap,
        "objective": own.objective,
        "primal": primal,
        "dual": dual,
    }
