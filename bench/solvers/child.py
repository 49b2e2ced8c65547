"""The process in which a peer runs: ``python -m bench.solvers.child REQUEST``; prints JSON.

Reading the file, importing the peer and testing are outside the clock: a peer is timed on fitting
rows that are in RAM already, after a fit of a few rows to warm up.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.solvers import SOLVERS, Peer
from bench.solvers.base import Figures, Parameters, Problem
from bench.solvers.tuned import Tuned
from bench.storage import read_labelled
from bench.verify import hinge_pair_gap

WARM_UP_ROWS = 100  # of each class
MEMORY_SHARE = 0.9  # of the machine's memory that a peer may take; what would take more fails


def run(peer: Peer, problem: Problem, parameters: Parameters) -> Figures:
    """Load, fit, test, in this process."""
    if isinstance(peer, Tuned):
        figures = peer.fit(problem, parameters)
        return figures | {"peak_rss_bytes": _peak()}
    storage = parameters.get("storage")
    X, labels = read_labelled(problem.train, peer.dtype, storage)
    classes = np.unique(labels)
    y = np.searchsorted(classes, labels)  # 0, 1, ... please every peer

    _warm_up(peer.build(problem, parameters), X, y)
    estimator = peer.build(problem, parameters)
    cpu_started, started = time.process_time(), time.perf_counter()
    estimator.fit(X, y)
    counts = getattr(estimator, "n_support_", None)
    figures = {
        "status": "fitted",
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_started,
        "peak_rss_bytes": _peak(),  # read here, since testing and checking come later
        "n_support": int(np.sum(counts)) if counts is not None else None,
        **_judged(estimator, read_labelled(problem.test, peer.dtype, storage), classes),
    }
    if problem.verify and peer.has_pair_gap and problem.gamma and len(classes) == 2:
        dual = estimator.dual_coef_
        dual = dual.toarray() if hasattr(dual, "toarray") else dual
        figures["verified_pair_gap"] = hinge_pair_gap(
            X,
            (2.0 * y - 1).astype(np.float64),
            np.asarray(estimator.support_, dtype=np.int64),
            np.asarray(dual, dtype=np.float64).ravel(),
            problem.C,
            problem.gamma,
        )
    return figures


def _peak() -> int:
    """Largest resident memory so far; Linux counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _warm_up(estimator: Any, X: Any, y: npt.NDArray[np.intp]) -> None:
    """Fit a few rows of all classes, so that the clock does not see libraries load their code."""
    labels = range(int(y.max()) + 1)
    few = np.sort(np.concatenate([np.flatnonzero(y == label)[:WARM_UP_ROWS] for label in labels]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(X[few], y[few])


def _judged(estimator: Any, test: tuple[Any, Any], classes: Any) -> Figures:
    """Accuracy, where a label that training did not have counts as wrong; AUC of two classes."""
    X, labels = test
    right = classes[np.asarray(estimator.predict(X), dtype=int)] == labels
    figures = {"accuracy": float(right.mean())}
    if len(classes) == 2 and np.array_equal(np.unique(labels), classes):
        from sklearn.metrics import roc_auc_score

        trees = hasattr(estimator, "predict_proba") and not hasattr(estimator, "decision_function")
        values = estimator.predict_proba(X)[:, 1] if trees else estimator.decision_function(X)
        figures["roc_auc"] = float(roc_auc_score(labels == classes[1], values))
    return figures


def limit_memory(most: int) -> None:
    """Limit the private memory of this process: a peer that wants more fails, not the machine."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limited = min(most, hard) if hard != resource.RLIM_INFINITY else most
    resource.setrlimit(resource.RLIMIT_DATA, (limited, hard))


def main() -> None:
    """Do what the request on the command line says."""
    limit_memory(int(MEMORY_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    request = json.loads(sys.argv[1])
    peer = SOLVERS[request["solver"]]
    assert isinstance(peer, Peer)
    print(json.dumps(run(peer, Problem(**request["problem"]), request["parameters"])))


if __name__ == "__main__":
    main()
