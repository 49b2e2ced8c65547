"""``ooc-fw plan``: what a training run would take, before it runs.

Owns the calibration and the estimate. The division of memory is `ooc_fw.system.memory.plan_memory`.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import common
from ooc_fw.cli.train import add_training_arguments, kernel_from, options_from, penalties_from
from ooc_fw.options import TrainOptions
from ooc_fw.system.memory import format_bytes

if TYPE_CHECKING:
    from ooc_fw.data.rows import Int64Array
    from ooc_fw.data.sources import RowSource
    from ooc_fw.kernels.functions import Kernel
    from ooc_fw.system.memory import MemoryPlan

_CALIBRATION_SECONDS = 0.5  # of each: reading rows, kernel values
_CALIBRATION_ROWS = 2048
_SAMPLE_ROWS = 2000  # solved exactly, for the share of rows that become support vectors
_PASSES = 2.5  # kernel values over rows x support vectors of a corrective run, as a rule


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "plan",
        help="show the memory plan, I/O and time of a training run before it runs",
        description="Print how `ooc-fw train` with the same options would divide the memory, how "
        "much it would read and about how long it would take, from a calibration of a second and "
        "a small sample solved exactly. Ends with status 2 where --memory cannot be met.",
    )
    common.add_data_arguments(parser, text=False)
    add_training_arguments(parser)
    parser.set_defaults(quiet=True)  # of the options of train that have no use here
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Plan, calibrate, print."""
    from ooc_fw.data.labels import encode_labels
    from ooc_fw.solve.loop import plan_run

    options = options_from(args)
    with common.open_data(args) as source, common.open_workers(args) as workers:
        classes, codes = encode_labels(source)
        penalties = penalties_from(args, classes, codes)
        largest_C = options.C if penalties is None else float(penalties.max())
        plan = plan_run(source, options)
        options = replace(options, threads=min(options.threads, plan.max_threads))
        kernel = kernel_from(args, source, options.threads, workers)
        estimate = _estimate(source, codes, kernel, options, plan, largest_C)
    result = {
        "memory_limit": plan.limit,
        "memory": plan.terms(),
        "max_vertices": plan.max_vertices,
        "max_threads": plan.max_threads,
        **estimate,
    }
    if args.json:
        common.print_result(result, as_json=True)
    else:
        print(_text(plan, result))
    return 0


def _estimate(
    source: RowSource,
    codes: Int64Array,
    kernel: Kernel,
    options: TrainOptions,
    plan: MemoryPlan,
    largest_C: float,
) -> dict[str, Any]:
    """Rates of this machine, the support to expect, and what a run would cost at most."""
    import numpy as np

    from ooc_fw.data.rows import CSRRows
    from ooc_fw.data.sources import ArraySource, CSRSource
    from ooc_fw.kernels.engine import Engine, choose_arithmetic
    from ooc_fw.model.pairs import union_of_rows
    from ooc_fw.problem import Problem
    from ooc_fw.solve.kernel_rows import value_type
    from ooc_fw.solve.loop import is_quantised
    from ooc_fw.training.one_versus_one import solve_classes

    started, read = time.perf_counter(), 0
    step = max(1, int((4 << 20) * source.n_rows / max(1, source.decoded_bytes)))
    first = rows = source.read(0, min(step, source.n_rows))
    while time.perf_counter() - started < _CALIBRATION_SECONDS and read + step < source.n_rows:
        read += step
        rows = source.read(read, min(read + step, source.n_rows))
    rows_a_second = (read + len(rows)) / (time.perf_counter() - started)

    sample = first[:_CALIBRATION_ROWS]
    with Engine(kernel, options.threads, *choose_arithmetic(kernel, sample)) as engine:
        x = engine.prepare(sample)
        weights = np.full(len(x), 1 / len(x))
        engine.weighted_sum(x, x, weights)  # compiles
        before, started = engine.evaluations, time.perf_counter()
        while time.perf_counter() - started < _CALIBRATION_SECONDS:
            engine.weighted_sum(x, x, weights)
        rate = (engine.evaluations - before) / (time.perf_counter() - started)

    ids = np.sort(
        np.random.default_rng(options.seed).choice(
            source.n_rows, min(_SAMPLE_ROWS, source.n_rows), replace=False
        )
    )
    share = 1.0
    names, own = np.unique(codes[ids], return_inverse=True)
    if len(names) > 1:
        rows = source.take(ids)
        small = CSRSource(rows) if isinstance(rows, CSRRows) else ArraySource(rows)
        pairs = solve_classes(Problem(small, own, kernel), TrainOptions(C=options.C, tol=1e-2))
        share = len(union_of_rows(pairs)) / len(ids)
    support = min(plan.max_vertices, int(share * source.n_rows))
    largest_value = float(kernel.diagonal(x.norms).max())
    quantised = is_quantised(options, kernel, source.n_rows)
    value_bytes = value_type(support, largest_C, largest_value, quantised).itemsize
    sweep = source.n_rows * support / rate + source.n_rows / rows_a_second
    return {
        "rows_per_second": rows_a_second,
        "kernel_values_per_second": rate,
        "support_share_of_sample": share,
        "support_at_most": support,
        "kernel_value_bytes": value_bytes,
        "sweep_bytes": source.decoded_bytes,
        "sweep_seconds_at_most": sweep,
        "seconds_at_most": _PASSES * sweep,
    }


def _text(plan: MemoryPlan, result: dict[str, Any]) -> str:
    lines = [f"{name:<38}{format_bytes(size):>10}" for name, size in plan.terms().items()]
    total = format_bytes(sum(plan.terms().values()))
    limit = "no limit given" if plan.limit is None else f"limit {format_bytes(plan.limit)}"
    lines += [
        f"{'in all':<38}{total:>10}  ({limit})",
        "",
        f"reads {result['rows_per_second']:.3g} rows/s, computes "
        f"{result['kernel_values_per_second']:.3g} kernel values/s",
        f"support vectors: {100 * result['support_share_of_sample']:.0f} % of a sample, so at most "
        f"about {result['support_at_most']}; the share falls as the data grow",
        f"kernel values between so many take {result['kernel_value_bytes']} bytes each, "
        f"{format_bytes(result['kernel_value_bytes'] * result['support_at_most'] ** 2)} if all are "
        f"held",
        f"a sweep reads {format_bytes(result['sweep_bytes'])} and takes at most about "
        f"{result['sweep_seconds_at_most']:.3g} s, a whole run {result['seconds_at_most']:.3g} s",
    ]
    return "\n".join(lines)
