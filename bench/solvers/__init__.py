"""The solvers: ours and their peers, by name.

A solver is asked for by a spec, ``NAME`` or ``NAME:key=value,key=value``. A peer is an entry of
`bench.solvers.peers.PEERS`, or of `bench.solvers.tuned.TUNED` if it has a grid of settings.

Importing this package imports no solver: each is imported in the process that runs it.
"""

from __future__ import annotations

from bench.solvers.base import Parameters, Peer, Problem, Solver
from bench.solvers.ours import OocFW, Tune
from bench.solvers.peers import PEERS
from bench.solvers.tuned import TUNED

__all__ = ["SOLVERS", "Parameters", "Peer", "Problem", "Solver", "parse_spec"]

SOLVERS: dict[str, Solver] = {one.name: one for one in (OocFW(), Tune(), *PEERS, *TUNED)}


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
