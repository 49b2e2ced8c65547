"""What tests allow some step rules, and combinations of rules that stand for all of them."""

from collections.abc import Sequence
from typing import Any

import pytest

from ooc_fw.solver.steps import STEP_RULES

METHODS = sorted(STEP_RULES)
"""Names of all step rules."""

SLOW = {"fw", "partan"}
"""Methods whose iterations grow tenfold with each decade of the tolerance."""

LMOS = ("full", "sampled")
"""Oracles that go with every method and end with a certificate."""

IN_TURN = [(method, LMOS[k % 2], k // 2 % 2 == 1) for k, method in enumerate(METHODS)]
"""Every method once; oracles and a flag, in all pairs, take turns."""


def grid(cases: Sequence[Any], quick: int = 2) -> list[Any]:
    """Cases, tuples or single values, of which the fast loop takes the first few only."""
    rest = (case if isinstance(case, tuple) else (case,) for case in cases[quick:])
    return [*cases[:quick], *(pytest.param(*case, marks=pytest.mark.grid) for case in rest)]
