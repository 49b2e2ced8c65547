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
from ooc_fw.solver.session import Session
from ooc_fw.solver.setup import few_rows, is_quantised
from ooc_fw.system.memory import (
    LandmarkPlan,
    MemoryPlan,
    format_bytes,
    least_bytes,
    memory_total,
    plan_memory,
)
from ooc_fw.training.choice import (
    LANDMARK_PASSES,
    choose,
    landmark_plan,
    landmark_seconds,
    workload_of,
)
from ooc_fw.training.estimate import PASSES, expect_support, kernel_speed

_CALIBRATION_SECONDS = 0.5
"""Seconds for reading rows, and again for computing kernel values."""
_READ_BYTES = 4 << 20
"""Bytes of rows that are read at once."""
_KERNEL_ROWS = 2048
"""Rows between which kernel values are computed."""


def run(args: argparse.Namespace) -> int:
    """Show the kind of model, memory plan, I/O and time of a training run before it runs."""
    options = common.record_from(TrainOptions, args)
    with (
        Waiting("the estimate", quiet=args.quiet),
        common.open_data(args) as source,
        common.open_workers(args) as workers,
    ):
        problem, plan = read_problem(args, source, options, workers)
        options = replace(options, threads=min(options.threads, plan.max_threads))
        session = Session(resume=args.resume)
        choice = choose(problem, options, session)
        if isinstance(plan, LandmarkPlan):  # that of an exact run is the least one
            work = workload_of(problem, options, session)
            exact = plan_memory(work, least_bytes(work), memory_total())
        else:
            exact = plan
        if choice.landmarks is not None:
            plan = landmark_plan(problem, options, session, choice.landmarks)
        result = {
            "choice": choice.reason,
            "kind": "exact" if choice.landmarks is None else "landmarks",
            "landmarks": choice.landmarks,
            "memory_limit": plan.limit,
            "memory": plan.terms(),
            "max_vertices": exact.max_vertices,
            "max_threads": plan.max_threads,
            **_estimate(problem, options, exact, choice.landmarks),
        }
    common.print_result(args, result, [choice.reason, "", *_lines(result)])
    return DONE


def _estimate(
    problem: ClassificationProblem, options: TrainOptions, plan: MemoryPlan, landmarks: int | None
) -> dict[str, Any]:
    """Speed of this machine, the support to expect, and upper limits of what a run costs."""
    source, kernel = problem.source, problem.kernel
    rows, rows_a_second = _read_rows(source)
    values_a_second, largest_value = kernel_speed(
        kernel, rows[: few_rows(source, _KERNEL_ROWS)], options.threads, _CALIBRATION_SECONDS
    )
    timeless = replace(options, max_time=None)
    # Landmarks may be all that there is room for.
    most = plan.max_vertices if landmarks is None else few_rows(source, plan.max_vertices)
    expected = expect_support(problem, timeless, Session(), source.n_rows, most)
    support = min(plan.max_vertices, int(expected.share * source.n_rows))
    largest_C = options.C if problem.penalties is None else float(problem.penalties.max())
    quantised = is_quantised(options, kernel, source.n_rows)
    vectors = support if landmarks is None else landmarks
    reading = source.n_rows / rows_a_second
    sweep = source.n_rows * vectors / values_a_second + reading
    seconds = PASSES * sweep
    if landmarks is not None:
        seconds = landmark_seconds(problem, landmarks, values_a_second) + LANDMARK_PASSES * reading
    value_bytes = value_type(support, largest_C, largest_value, quantised).itemsize
    return {
        "rows_per_second": rows_a_second,
        "kernel_values_per_second": values_a_second,
        "support_share_of_sample": expected.share,
        "support_at_most": support,
        "kernel_value_bytes": value_bytes,
        "kernel_values_fit": landmarks is not None or value_bytes * support**2 <= plan.kernel_rows,
        "sweep_bytes": source.decoded_bytes,
        "sweep_seconds_at_most": sweep,
        "seconds_at_most": seconds,
    }


def _read_rows(source: RowSource) -> tuple[Rows, float]:
    """The first rows, and how many are read in a second."""
    started, read = time.perf_counter(), 0
    step = max(1, int(_READ_BYTES * source.n_rows / max(1, source.decoded_bytes)))
    first = rows = source.read(0, min(step, source.n_rows))
    while time.perf_counter() - started < _CALIBRATION_SECONDS and read + step < source.n_rows:
        read += step
        rows = source.read(read, min(read + step, source.n_rows))
    return first, (read + len(rows)) / (time.perf_counter() - started)


def _lines(result: dict[str, Any]) -> list[str]:
    """The plan and the estimate for people."""
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
