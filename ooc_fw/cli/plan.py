"""``ooc-fw plan``: memory, reading and time of a training run, before it runs."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.cli.train import read_problem
from ooc_fw.data.rows import Rows
from ooc_fw.data.sources import RowSource
from ooc_fw.options import TrainOptions
from ooc_fw.problem import ClassificationProblem
from ooc_fw.report.progress import Waiting
from ooc_fw.solver.kernel_rows import value_type
from ooc_fw.solver.plan import Plan, Session, few_rows, plan_exact
from ooc_fw.system.memory import format_bytes, least_bytes, memory_total, plan_memory
from ooc_fw.training.classification import (
    LANDMARK_PASSES,
    PASSES,
    expect_support,
    kernel_speed,
    landmark_seconds,
)
from ooc_fw.training.fit import make_plan, task_of

_CALIBRATION_SECONDS = 0.5  # for reading rows, and again for computing kernel values
_READ_BYTES = 4 << 20  # of rows that are read at once
_KERNEL_ROWS = 2048  # between which kernel values are computed


def run(args: argparse.Namespace) -> int:
    """Show the kind of model, memory plan, I/O and time of a training run before it runs."""
    options = common.record_from(TrainOptions, args)
    with (
        Waiting("the estimate", quiet=args.quiet),
        common.open_data(args) as source,
        common.open_workers(args) as workers,
    ):
        problem = read_problem(args, task_of("classification"), source, options, workers)
        plan = make_plan(problem, options, Session(resume=args.resume))
        exact = _exact(problem, plan)
        result = {
            "choice": plan.kind,
            "kind": "exact" if plan.landmarks is None else "landmarks",
            "landmarks": plan.landmarks,
            "memory_limit": plan.memory.limit,
            "memory": plan.memory.terms(),
            "max_vertices": exact.memory.max_vertices,
            "max_threads": plan.memory.max_threads,
            **_estimate(problem, exact, plan.landmarks),
        }
    common.print_result(args, result, [plan.kind, "", *_lines(result)])
    return DONE


def _exact(problem: ClassificationProblem, plan: Plan) -> Plan:
    """The plan itself, or that of the exact model in the place of a landmark model."""
    if plan.landmarks is None:
        return plan
    work, limit = plan.memory.work, plan.memory.limit
    if limit is not None:
        limit = max(limit, least_bytes(work))
    options, memory = replace(plan.given, landmarks=None), plan_memory(work, limit, memory_total())
    return plan_exact(problem, options, memory=memory)


def _estimate(problem: ClassificationProblem, plan: Plan, landmarks: int | None) -> dict[str, Any]:
    """Speed of this machine, the support to expect, and upper limits of what a run costs."""
    source, options, memory = problem.source, plan.options, plan.memory
    rows, rows_a_second = _read_rows(source)
    values_a_second, largest_value = kernel_speed(
        problem.kernel,
        rows[: few_rows(source, _KERNEL_ROWS)],
        options.threads,
        _CALIBRATION_SECONDS,
    )
    # Landmarks may be all that there is room for.
    most = memory.max_vertices if landmarks is None else few_rows(source, memory.max_vertices)
    timeless = replace(options, max_time=None)
    expected = expect_support(problem, timeless, Session(), source.n_rows, most)
    support = min(memory.max_vertices, int(expected.share * source.n_rows))
    largest_C = options.C if problem.penalties is None else float(problem.penalties.max())
    reading = source.n_rows / rows_a_second
    sweep = reading + source.n_rows * (landmarks or support) / values_a_second
    seconds = PASSES * sweep
    if landmarks is not None:
        seconds = landmark_seconds(problem, landmarks, values_a_second) + LANDMARK_PASSES * reading
    value_bytes = value_type(support, largest_C, largest_value, plan.quantised).itemsize
    fit = value_bytes * support**2 <= memory.parts["kernel_rows"]
    return {
        "rows_per_second": rows_a_second,
        "kernel_values_per_second": values_a_second,
        "support_share_of_sample": expected.share,
        "support_at_most": support,
        "kernel_value_bytes": value_bytes,
        "kernel_values_fit": landmarks is not None or fit,
        "sweep_bytes": source.decoded_bytes,
        "sweep_seconds_at_most": sweep,
        "seconds_at_most": seconds,
    }


def _read_rows(source: RowSource) -> tuple[Rows, float]:
    started, read = time.perf_counter(), 0
    step = max(1, int(_READ_BYTES * source.n_rows / max(1, source.decoded_bytes)))
    first = rows = source.read(0, min(step, source.n_rows))
    while time.perf_counter() - started < _CALIBRATION_SECONDS and read + step < source.n_rows:
        read += step
        rows = source.read(read, min(read + step, source.n_rows))
    return first, (read + len(rows)) / (time.perf_counter() - started)


def _lines(result: dict[str, Any]) -> list[str]:
    n_bytes, support = result["kernel_value_bytes"], result["support_at_most"]
    memory, limit = result["memory"], "no limit given"
    if result["memory_limit"] is not None:
        limit = f"limit {format_bytes(result['memory_limit'])}"
    recomputed = (
        "they do not all fit the memory and are computed again and again, so that a run may take "
        "many times as long as estimated below; more --memory, or --landmarks, avoids that"
    )
    return [
        *(f"{name:<38}{format_bytes(size):>10}" for name, size in memory.items()),
        f"{'in all':<38}{format_bytes(sum(memory.values())):>10}  ({limit})",
        "",
        f"reads {result['rows_per_second']:.3g} rows/s, computes "
        f"{result['kernel_values_per_second']:.3g} kernel values/s",
        f"support vectors: {100 * result['support_share_of_sample']:.0f} % of a sample, so at most "
        f"about {support} of an exact model; the share falls as the data grow",
        f"kernel values between so many take {n_bytes} bytes each, "
        f"{format_bytes(n_bytes * support**2)} if all are held",
        *[recomputed] * (not result["kernel_values_fit"]),
        f"a pass reads {format_bytes(result['sweep_bytes'])} and takes at most about "
        f"{result['sweep_seconds_at_most']:.3g} s, a whole run "
        f"{result['seconds_at_most']:.3g} s; starting the program adds about a second",
    ]
