"""The solvers: ours and their peers, by name.

A spec ``NAME`` or ``NAME:key=value,key=value`` asks for a solver. A peer is an entry of `PEERS`, or
of `TUNED` if it has a grid of settings. Each is imported in the process that runs it, not here.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TypeAlias

from bench.solvers.base import Parameters, Peer, Problem
from bench.solvers.ours import OocFW
from bench.solvers.peers import PEERS
from bench.solvers.tuned import TUNED

__all__ = ["SOLVERS", "Parameters", "Peer", "Problem", "Solver", "missing", "parse_spec"]

Solver: TypeAlias = OocFW | Peer
OURS = (OocFW(), OocFW("tune", "tune"))
SOLVERS: dict[str, Solver] = {one.name: one for one in (*OURS, *PEERS, *TUNED)}


def missing(solver: Solver) -> list[str]:
    """Modules that a solver needs and this environment lacks."""
    return [name for name in solver.packages if find_spec(name) is None]


def parse_spec(spec: str) -> tuple[Solver, Parameters]:
    """Solver and parameters that a spec asks for, defaults filled in; or ValueError.

    >>> solver, parameters = parse_spec("nystroem:components=300")
    >>> solver.name, parameters["components"]
    ('nystroem', 300)
    """
    name, _, rest = spec.partition(":")
    if name not in SOLVERS:
        raise ValueError(f"no solver is called {name!r}; there are {', '.join(SOLVERS)}")
    pairs = (part.partition("=") for part in rest.split(",") if part)
    given = {key: value for key, _, value in pairs}
    solver = SOLVERS[name]
    try:
        return solver, solver.parameters(given)
    except ValueError as error:
        raise ValueError(f"{spec}: {error}") from None
