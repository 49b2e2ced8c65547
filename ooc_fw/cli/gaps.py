"""Gaps for people: rounded up, and what each of them is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from ooc_fw.system.errors import format_label, format_value


def format_gap(gap: float | None) -> str:
    """Gap with three digits, rounded up."""
    if gap is None:
        return "unknown"
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).plus(Decimal(gap))):.2e}"


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
