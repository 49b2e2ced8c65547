"""Peers: SVC of scikit-learn (LIBSVM) and of scikit-learn-intelex, approximations, linear, trees.

An SVC solves the L1-SVM (hinge loss) with the same kernel and C, we solve the L2-SVM (squared
hinge): near relatives, but not one problem. Its weights are bounded by C, so that it has no
relative duality gap in our sense; what its `tol` bounds is checked as `verified_pair_gap`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from bench.solvers.base import Parameters, Peer, Problem


def svc_options(problem: Problem, parameters: Parameters) -> dict[str, Any]:
    """Arguments common to both classes."""
    return {
        "kernel": "rbf",
        "C": problem.C,
        "gamma": problem.gamma,
        "tol": parameters["tol"],
        "cache_size": parameters["cache_mb"],
    }


class SklearnSVC(Peer):
    """scikit-learn's SVC, float64, one thread."""

    name: ClassVar[str] = "sklearn-svc"
    defaults: ClassVar[Parameters] = {"tol": 1e-3, "cache_mb": 2048.0}
    has_pair_gap: ClassVar[bool] = True

    def build(self, problem: Problem, parameters: Parameters) -> Any:
        from sklearn.svm import SVC

        return SVC(**svc_options(problem, parameters))


class IntelexSVC(Peer):
    """SVC of scikit-learn-intelex, float32, all threads."""

    name: ClassVar[str] = "intelex-svc"
    packages: ClassVar[tuple[str, ...]] = ("sklearn", "sklearnex")
    # Dense rows were the faster ones for it on a9a and hardly slower on w7a.
    defaults: ClassVar[Parameters] = {"tol": 1e-3, "cache_mb": 2048.0, "storage": "dense"}
    dtype: ClassVar[str] = "float32"
    has_pair_gap: ClassVar[bool] = True

    def build(self, problem: Problem, parameters: Parameters) -> Any:
        from sklearnex.svm import SVC

        return SVC(**svc_options(problem, parameters))


class _Subsampled:
    """An estimator that is fitted to so many random rows."""

    def __init__(self, estimator: Any, rows: int, seed: int) -> None:
        self._estimator, self._rows, self._seed = estimator, rows, seed
        self.predict, self.decision_function = estimator.predict, estimator.decision_function

    def fit(self, X: Any, y: Any) -> Self:
        """Draw, then fit."""
        import numpy as np

        chosen = np.sort(np.random.default_rng(self._seed).permutation(len(y))[: self._rows])
        self._estimator.fit(X[chosen], y[chosen])
        self.n_support_ = self._estimator.n_support_
        return self


class SubsampleSVC(Peer):
    """LIBSVM on random rows: easily forgotten, and hard to beat on noisy data."""

    name: ClassVar[str] = "subsample"
    defaults: ClassVar[Parameters] = {"rows": 4000, "tol": 1e-3, "cache_mb": 2048.0}

    def build(self, problem: Problem, parameters: Parameters) -> Any:
        from sklearn.svm import SVC

        svc = SVC(**svc_options(problem, parameters))
        return _Subsampled(svc, int(parameters["rows"]), problem.seed)


class NystroemSVC(Peer):
    """Nystroem features of the same kernel, then LIBLINEAR (squared hinge loss as ours).

    With an alpha SGD takes its place, which needs far less memory.
    """

    name: ClassVar[str] = "nystroem"
    defaults: ClassVar[Parameters] = {"components": 1000, "alpha": 0.0}
    dtype: ClassVar[str] = "float32"

    def build(self, problem: Problem, parameters: Parameters) -> Any:
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
            return make_pipeline(features, linear_sgd(problem, parameters))
        # LIBLINEAR weighs the squared slack by C, our problem by C / 2.
        return make_pipeline(features, LinearSVC(C=problem.C / 2, dual="auto"))


def linear_sgd(problem: Problem, parameters: Parameters) -> Any:
    """A linear SVM by stochastic gradients, its iterates averaged."""
    from sklearn.linear_model import SGDClassifier

    return SGDClassifier(alpha=parameters["alpha"], average=True, random_state=problem.seed)


class LinearSGD(Peer):
    """A linear SVM on the rows themselves, by stochastic gradients: what a kernel has to beat."""

    name: ClassVar[str] = "sgd"
    defaults: ClassVar[Parameters] = {"alpha": 1e-4}

    def build(self, problem: Problem, parameters: Parameters) -> Any:
        return linear_sgd(problem, parameters)


class HistBoosting(Peer):
    """scikit-learn's boosted trees as they are by default: what tables are compared with."""

    name: ClassVar[str] = "hist-boosting"
    dtype: ClassVar[str] = "float32"

    def build(self, problem: Problem, parameters: Parameters) -> Any:
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(random_state=problem.seed)


class XGBoost(Peer):
    """Boosted trees on the CPU: no kernel, no C, a yardstick for accuracy a second."""

    name: ClassVar[str] = "xgboost"
    packages: ClassVar[tuple[str, ...]] = ("sklearn", "xgboost")
    defaults: ClassVar[Parameters] = {"trees": 200, "depth": 6, "rate": 0.2}
    dtype: ClassVar[str] = "float32"

    def build(self, problem: Problem, parameters: Parameters) -> Any:
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
