"""Peers: SVC of scikit-learn (LIBSVM) and of scikit-learn-intelex, approximations, linear, trees.

An SVC solves the L1-SVM (hinge loss) with the same kernel and C, we solve the L2-SVM (squared
hinge): near relatives, but not one problem. Its weights are bounded by C, so that it has no
relative duality gap in our sense; what its `tol` bounds is checked as `verified_pair_gap`.
"""

from __future__ import annotations

from typing import Any, Self

from bench.solvers.base import Build, Parameters, Peer, Problem, machine
from bench.solvers.falkon import Falkon

SVC: Parameters = {"tol": 1e-3, "cache_mb": 2048.0}
AVERAGED: Parameters = {"average": True}


def svc(package: str) -> Build:
    """The SVC of scikit-learn or of scikit-learn-intelex."""

    def build(problem: Problem, parameters: Parameters) -> Any:
        own = {
            "C": problem.C,
            "gamma": problem.gamma,
            "tol": parameters["tol"],
            "cache_size": parameters["cache_mb"],
        }
        return machine(f"{package}.svm", "SVC")(problem, own)

    return build


class _Subsampled:
    """An SVC that is fitted to so many random rows."""

    def __init__(self, problem: Problem, parameters: Parameters) -> None:
        self._svc = svc("sklearn")(problem, parameters)
        self._rows, self._seed = int(parameters["rows"]), problem.seed
        self.predict, self.decision_function = self._svc.predict, self._svc.decision_function

    def fit(self, X: Any, y: Any) -> Self:
        """Draw, then fit."""
        import numpy as np

        chosen = np.sort(np.random.default_rng(self._seed).permutation(len(y))[: self._rows])
        self._svc.fit(X[chosen], y[chosen])
        self.n_support_ = self._svc.n_support_
        return self


sgd = machine("sklearn.linear_model", "SGDClassifier", seeded=True)


def nystroem(problem: Problem, parameters: Parameters) -> Any:
    """Nystroem features of the same kernel, then LIBLINEAR (squared hinge loss as ours).

    With an alpha SGD takes its place, which needs far less memory.
    """
    from sklearn.kernel_approximation import Nystroem
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    features = Nystroem(
        kernel="rbf",
        gamma=problem.gamma,
        n_components=int(parameters["components"]),
        random_state=problem.seed,
        n_jobs=problem.threads,
    )
    if parameters["alpha"]:
        return make_pipeline(features, sgd(problem, {"alpha": parameters["alpha"], **AVERAGED}))
    # LIBLINEAR weighs the squared slack by C, our problem by C / 2.
    return make_pipeline(features, LinearSVC(C=problem.C / 2, dual="auto"))


def xgboost(problem: Problem, parameters: Parameters) -> Any:
    """Boosted trees on the CPU: no kernel, no C, a yardstick for accuracy a second."""
    from xgboost import XGBClassifier

    return XGBClassifier(
        n_estimators=parameters["trees"],
        max_depth=parameters["depth"],
        learning_rate=parameters["rate"],
        tree_method="hist",
        device="cpu",
        n_jobs=problem.threads,
        random_state=problem.seed,
    )


network = machine("sklearn.neural_network", "MLPClassifier", seeded=True)
boosting = machine("sklearn.ensemble", "HistGradientBoostingClassifier", seeded=True)
PEERS = (
    Peer("sklearn-svc", svc("sklearn"), SVC, has_pair_gap=True),
    Peer(
        "intelex-svc",
        svc("sklearnex"),
        {**SVC, "storage": "dense"},  # or sparse; the faster one differs from set to set
        "float32",
        ("sklearn", "sklearnex"),
        has_pair_gap=True,
    ),
    # LIBSVM on random rows is easily forgotten, and hard to beat on noisy data.
    Peer("subsample", _Subsampled, {"rows": 4000, **SVC}),
    Peer("nystroem", nystroem, {"components": 1000, "alpha": 0.0}, "float32"),
    Peer("falkon", Falkon, {"centres": 5000, "iterations": 20}, "float32", ("scipy",)),
    # A linear SVM by stochastic gradients, its iterates averaged: what a kernel has to beat.
    Peer("sgd", sgd, {"alpha": 1e-4, **AVERAGED}),
    Peer("mlp", network, {"early_stopping": True, "max_iter": 50}, "float32"),
    Peer("hist-boosting", boosting, {}, "float32"),
    Peer(
        "xgboost",
        xgboost,
        {"trees": 200, "depth": 6, "rate": 0.2},
        "float32",
        ("sklearn", "xgboost"),
    ),
)
