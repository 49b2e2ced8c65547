"""Exact peers: SVC of scikit-learn (LIBSVM) and of scikit-learn-intelex.

Both solve the L1-SVM (hinge loss) with the same kernel and C, we solve the L2-SVM (squared hinge):
near relatives, but not one problem. Their weights are bounded by C, so they have no relative
duality gap in our sense; the violation that their `tol` bounds is checked as `verified_pair_gap`.
"""

from __future__ import annotations

from typing import Any, ClassVar

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
        """SVC as it stands."""
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
        """SVC of the extension, whatever scikit-learn itself would do."""
        from sklearnex.svm import SVC

        return SVC(**svc_options(problem, parameters))
