"""Peers that give up exactness: LIBSVM on a random subsample, Nystroem features, boosted trees.

The subsample is the baseline that is easily forgotten and hard to beat on noisy data.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from bench.solvers.base import Parameters, Peer, Problem
from bench.solvers.exact import svc_options


class _Subsampled:
    """An estimator that sees a random part of the rows."""

    def __init__(self, estimator: Any, rows: int, seed: int) -> None:
        self._estimator = estimator
        self._rows = rows
        self._seed = seed

    def fit(self, X: Any, y: Any) -> Self:
        """Draw, then fit."""
        import numpy as np

        n = X.shape[0]
        chosen = np.random.default_rng(self._seed).permutation(n)[: self._rows]
        chosen.sort()
        self._estimator.fit(X[chosen], y[chosen])
        self.n_support_ = self._estimator.n_support_
        return self

    def predict(self, X: Any) -> Any:
        """Pass on."""
        return self._estimator.predict(X)


class SubsampleSVC(Peer):
    """LIBSVM, through scikit-learn, on random rows."""

    name: ClassVar[str] = "subsample"
    defaults: ClassVar[Parameters] = {"rows": 4000, "tol": 1e-3, "cache_mb": 2048.0}

    def build(self, problem: Problem, parameters: Parameters) -> Any:
        """SVC behind a random draw."""
        from sklearn.svm import SVC

        svc = SVC(**svc_options(problem, parameters))
        return _Subsampled(svc, int(parameters["rows"]), problem.seed)


class NystroemSVC(Peer):
    """Nystroem features of the same kernel, then LIBLINEAR; squared hinge loss as ours."""

    name: ClassVar[str] = "nystroem"
    defaults: ClassVar[Parameters] = {"components": 1000}
    dtype: ClassVar[str] = "float32"

    def build(self, problem: Problem, parameters: Parameters) -> Any:
        """Two steps as one estimator."""
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
        # LIBLINEAR weighs the squared slack by C, our problem by C / 2.
        return make_pipeline(features, LinearSVC(C=problem.C / 2, dual="auto"))


class XGBoost(Peer):
    """Boosted trees on the CPU: no kernel, no C, a yardstick for accuracy a second."""

    name: ClassVar[str] = "xgboost"
    packages: ClassVar[tuple[str, ...]] = ("sklearn", "xgboost")
    defaults: ClassVar[Parameters] = {"trees": 200, "depth": 6, "rate": 0.2}
    dtype: ClassVar[str] = "float32"

    def build(self, problem: Problem, parameters: Parameters) -> Any:
        """Histogram trees."""
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
