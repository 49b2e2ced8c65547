"""What `bench.run` crosses: each configuration makes the records of one file of results.

On two idle cores they take some minutes: readme 15, noisy 6, growth 10, methods 1, novelty 4,
regression 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Runs:
    """Sets, and the solvers that run on each of them in turn."""

    sets: Sequence[str]
    specs: Sequence[str]
    table: str = "runs"  # of `bench.published`
    repeat: int = 1
    targets: Mapping[str, int] = field(default_factory=dict)  # ordinary class, or target column
    timeout_s: float = 1800.0


BOUNDED = ("ooc-fw:memory=2GiB,tol=1e-2", "intelex-svc:tol=1e-2")
BESIDE_INTELEX = ("ooc-fw", "intelex-svc")
METHODS = ("fw", "partan", "mfw", "swap", "swap2", "cvm", "corrective")
# The ordinary class, and the column that is predicted.
ORDINARY = {"shuttle": 1, "pendigits": 0, "usps": 1, "mnist": 8}
TARGETS = {"letter": 0, "pendigits": 15, "skin": 0, "usps": 120}

CONFIGS: dict[str, tuple[Runs, ...]] = {
    # Runs that do not fit in memory, then sets in memory beside a peer.
    "readme": (
        Runs(
            ("covtype-narrow",),
            ("ooc-fw:memory=1GiB,exact=", "subsample:rows=40000", "sgd"),
            "proof",
        ),
        Runs(
            ("digits-1e6",),
            ("ooc-fw:memory=3GiB,C=1,gamma=search,max-time=20m", "subsample:rows=40000", "sgd"),
            "proof",
        ),
        Runs(("connections",), ("ooc-fw:memory=1GiB,tol=1e-2",), "size"),
        Runs(("clustered-1e8",), BOUNDED[:1], "size"),
        Runs(("one-hot",), ("ooc-fw:memory=1GiB",), "size"),
        Runs(("kdd99", "mnist", "letter", "ijcnn1"), BESIDE_INTELEX, "measured", 3),
        Runs(("topics",), ("ooc-fw", "intelex-svc:storage=sparse"), "measured", 3),
        Runs(("covtype-40k", "w7a", "a9a"), BESIDE_INTELEX, "measured", 3),
    ),
    # Landmarks and a search on noisy tables, beside trees and linear models.
    "noisy": (
        Runs(
            ("covtype",),
            ("ooc-fw:landmarks=1000", "ooc-fw:landmarks=2000", "ooc-fw:gamma=search")
            + ("tune:metric=auc,max-time=1m",)
            + ("nystroem:components=1000,alpha=1e-6", "falkon:centres=2000")
            + ("subsample:rows=4000", "sgd", "mlp", "hist-boosting", "xgboost")
            + ("xgboost:trees=1000,depth=12",),
            "noisy",
        ),
        Runs(
            ("calls",),
            ("ooc-fw", "tune:metric=auc,max-time=1m", "nystroem:components=1000,alpha=1e-6")
            + ("falkon:centres=2000", "sgd", "mlp", "hist-boosting", "xgboost"),
            "noisy",
        ),
    ),
    "growth": tuple(
        runs
        for kind in ("clustered", "noisy")
        for runs in (
            Runs((f"{kind}-1e5", f"{kind}-1e6"), BOUNDED, "growth", timeout_s=150),
            Runs((f"{kind}-1e7",), BOUNDED[:1], "growth"),
        )
    ),
    "methods": (
        Runs(
            ("a1a",),
            tuple(f"ooc-fw:method={m},lmo=full,tol={t}" for m in METHODS for t in ("1e-1", "1e-2")),
            "methods",
        ),
    ),
    "novelty": (
        Runs(tuple(ORDINARY), ("one-class", "sklearn-one-class"), "novelty", targets=ORDINARY),
    ),
    "regression": (
        Runs(
            tuple(TARGETS),
            ("svr", "sklearn-svr", "svr:epsilon=0", "kernel-ridge"),
            "regression",
            targets=TARGETS,
        ),
    ),
}
