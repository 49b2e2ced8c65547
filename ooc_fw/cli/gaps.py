"""Gaps in words: what each of them is of, and what it says about the objective."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal, localcontext
from typing import Any

from ooc_fw.system.errors import format_label, format_value


def format_gap(gap: float | None) -> str:
    """Gap with three digits, rounded up."""
    if gap is None:
        return "unknown"
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).plus(Decimal(gap))):.2e}"


def gap_in_words(
    gap: float | None, kind: str | None, scope: str | None, certified: bool
) -> list[str]:
    """What a gap says of the objective, rounded up; no lines where it is unknown.

    Weights a of an exact model with gap g have a'Qb >= (1 - g) a'Qa for all weights b, so that
    b'Qb >= (1 - g)^2 a'Qa by Cauchy and Schwarz. The gap of landmarks is (P - D) / P.
    """
    if gap is None or not math.isfinite(gap):
        return []
    if not certified:
        return ["it is of some rows only and proves nothing; ooc-fw certify takes all of them"]
    if gap >= 1:
        return ["no bound yet: the gap is 1 or more"]
    with localcontext(rounding=ROUND_CEILING):
        least = Decimal(gap)
        share = least if kind == "landmarks" else least * (2 - least)
        percent = Context(prec=2, rounding=ROUND_CEILING).plus(100 * share)
    other = "on these landmarks" if scope == "span" else "of this kind"
    return [
        f"{format_gap(gap)}: no other model {other} has an objective smaller by more than "
        f"{percent:f} %; it says nothing about accuracy on new rows"
    ]


def gap_lines(classifiers: Sequence[Mapping[str, Any]], most: int | None = None) -> list[str]:
    """Certified gap of each binary classifier, or of the first `most`."""
    lines = []
    for each in classifiers:
        sides = sides_of(each, of_one="primal" in each)
        lines.append(f"{sides}  {format_gap(each['certified_gap'])}")
    if most is not None and len(lines) > most:
        lines[most:] = [f"and {len(lines) - most} more binary classifiers, which --json lists"]
    return lines


def sides_of(classifier: Mapping[str, Any], *, of_one: bool) -> str:
    """What a binary classifier tells apart: two classes, or of landmarks one from the rest."""
    first = format_label(classifier["negative"])
    second = format_label(classifier["positive"])
    return f"{second} against the rest" if of_one else f"{first} against {second}"


def span_of(result: Mapping[str, Any]) -> str:
    """Where the gap of a landmark model is the least."""
    return f"within the span of the {result['n_support']} landmarks"


def with_scope(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result for people, who are told which gaps are of some landmarks, or some rows, alone."""
    shown = dict(result)
    limits = []
    if result.get("gap_scope") == "span":
        limits.append(span_of(result))
    if shown.pop("n_weighted", None) is not None:
        limits.append(f"over {result['n_weighted']} rows alone; all others have no weight")
    for name in ("certified_gap", "sampled_gap") if limits else ():
        if result.get(name) is not None:
            shown[name] = f"{format_value(result[name])} ({', '.join(limits)})"
    return shown
