"""The solvers: ours and their peers, by name.

A solver is asked for by a spec, ``NAME`` or ``NAME:key=value,key=value``. To add a peer: a class
with the verbs of `bench.solvers.base.Peer` and a line in `SOLVERS`.

Importing this package imports no solver: each is imported in the process that runs it.
"""

from __future__ import annotations

from bench.solvers.base import Parameters, Peer, Problem, Solver
from bench.solvers.ours import OocFW, Tune
from bench.solvers.peers import (
    HistBoosting,
    IntelexSVC,
    LinearSGD,
    NystroemSVC,
    SklearnSVC,
    SubsampleSVC,
    XGBoost,
)
from bench.solvers.tuned import SVR, KernelRidge, OneClass, SklearnOneClass, SklearnSVR

__all__ = ["DEFAULT_SPECS", "SOLVERS", "Parameters", "Peer", "Problem", "Solver", "parse_spec"]

SOLVERS: dict[str, Solver] = {
    solver.name: solver
    for solver in (
        OocFW(),
        Tune(),
        IntelexSVC(),
        SklearnSVC(),
        SubsampleSVC(),
        NystroemSVC(),
        LinearSGD(),
        HistBoosting(),
        XGBoost(),
        OneClass(),
        SklearnOneClass(),
        SVR(),
        SklearnSVR(),
        KernelRidge(),
    )
}

DEFAULT_SPECS = (
    "ooc-fw",
    "ooc-fw:tol=1e-2",
    "ooc-fw:tol=1e-1",
    "intelex-svc",
    "intelex-svc:storage=sparse",
    "sklearn-svc",
    "subsample:rows=1000",
    "subsample:rows=4000",
    "subsample:rows=16000",
    "nystroem:components=300",
    "nystroem:components=1000",
    "xgboost",
)
"""What is run by default: several points a family, for time against accuracy and gap."""


def parse_spec(spec: str) -> tuple[Solver, Parameters]:
    """Solver and parameters that a spec asks for, defaults filled in.

    Raises
    ------
    ValueError
        For an unknown solver or parameter, or a value of the wrong type.

    Examples
    --------
    >>> solver, parameters = parse_spec("nystroem:components=300")
    >>> solver.name, parameters["components"]
    ('nystroem', 300)
    """
    name, _, rest = spec.partition(":")
    if name not in SOLVERS:
        raise ValueError(f"no solver is called {name!r}; there are {', '.join(SOLVERS)}")
    given = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        given[key] = value
    solver = SOLVERS[name]
    try:
        return solver, solver.parameters(given)
    except ValueError as error:
        raise ValueError(f"{spec}: {error}") from None
