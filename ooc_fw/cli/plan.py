"""``ooc-fw plan``: memory, reading and time of a training run, before it runs."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import common
from ooc_fw.cli.train import add_training_arguments, read_problem
from ooc_fw.options import TrainOptions
from ooc_fw.system.memory import format_bytes

if TYPE_CHECKING:
    from ooc_fw.data.rows import Rows
    from ooc_fw.data.sources import RowSource
    from ooc_fw.kernels.functions import Kernel
    from ooc_fw.problem import Problem
    from ooc_fw.system.memory import MemoryPlan

_CALIBRATION_SECONDS = 0.5
"""Seconds for reading rows, and again for computing kernel values."""
_READ_BYTES = 4 << 20
"""Bytes of rows that are read at once."""
_KERNEL_ROWS = 2048
"""Rows between which kernel values are computed."""
_SAMPLE_ROWS = 2000
"""Rows of the problem that is solved for the share of rows that become support vectors."""
_PASSES = 2.5
"""Kernel values of a typical corrective run, divided by rows times support vectors."""


def add_commands(commands: common.Commands) -> None:
    """Declare the command."""
    parser = commands.add("plan", run)
    common.add_data(parser)
    add_training_arguments(parser)
    common.add_results(parser)


def run(args: argparse.Namespace) -> int:
    """Show the memory plan, I/O and time of a training run before it runs.

    Print how `ooc-fw train` with the same options would divide the memory, how much it would read
    and about how long it would take, from a calibration of a second and a small sample solved
    exactly. The exit status is 2 if --memory cannot be met.
    """
    options = common.record_from(TrainOptions, args)
    with common.open_data(args) as source, common.open_workers(args) as workers:
        problem, plan = read_problem(args, source, options, workers)
        options = replace(options, threads=min(options.threads, plan.max_threads))
        result = {
            "memory_limit": plan.limit,
            "memory": plan.terms(),
            "max_vertices": plan.max_vertices,
            "max_threads": plan.max_threads,
            **_estimate(problem, options, plan),
        }
    common.print_result(args, result, _lines(plan, result))
    return common.DONE


def _estimate(problem: Problem, options: TrainOptions, plan: MemoryPlan) -> dict[str, Any]:
    """Speed of this machine, the support to expect, and upper limits of what a run would cost."""
    from ooc_fw.solver.kernel_rows import value_type
    from ooc_fw.solver.setup import is_quantised

    source, kernel = problem.source, problem.kernel
    rows, rows_a_second = _read_rows(source)
    values_a_second, largest_value = _compute_values(kernel, rows[:_KERNEL_ROWS], options.threads)
    share = _support_share(problem, options)
    support = min(plan.max_vertices, int(share * source.n_rows))
    largest_C = options.C if problem.penalties is None else float(problem.penalties.max())
    quantised = is_quantised(options, kernel, source.n_rows)
    sweep = source.n_rows * support / values_a_second + source.n_rows / rows_a_second
    return {
        "rows_per_second": rows_a_second,
        "kernel_values_per_second": values_a_second,
        "support_share_of_sample": share,
        "support_at_most": support,
        "kernel_value_bytes": value_type(support, largest_C, largest_value, quantised).itemsize,
        "sweep_bytes": source.decoded_bytes,
        "sweep_seconds_at_most": sweep,
        "seconds_at_most": _PASSES * sweep,
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


def _compute_values(kernel: Kernel, rows: Rows, threads: int) -> tuple[float, float]:
    """How many kernel values are computed in a second, and the largest of the rows' diagonal."""
    import numpy as np

    from ooc_fw.kernels.arithmetic import choose_arithmetic
    from ooc_fw.kernels.engine import Engine

    with Engine(kernel, threads, choose_arithmetic(kernel, rows)) as engine:
        x = engine.prepare(rows)
        weights = np.full(len(x), 1 / len(x))
        engine.weighted_sum(x, x, weights)  # the first call compiles
        before, started = engine.evaluations, time.perf_counter()
        while time.perf_counter() - started < _CALIBRATION_SECONDS:
            engine.weighted_sum(x, x, weights)
        rate = (engine.evaluations - before) / (time.perf_counter() - started)
    return rate, float(kernel.diagonal(x.norms).max())


def _support_share(problem: Problem, options: TrainOptions) -> float:
    """Share of the rows of a sample that support its model."""
    import numpy as np

    from ooc_fw.data.rows import CSRRows
    from ooc_fw.data.sources import ArraySource, CSRSource
    from ooc_fw.problem import Problem
    from ooc_fw.training.fit import fit

    n_rows = problem.source.n_rows
    rng = np.random.default_rng(options.seed)
    ids = np.sort(rng.choice(n_rows, min(_SAMPLE_ROWS, n_rows), replace=False))
    names, codes = np.unique(problem.codes[ids], return_inverse=True)
    if len(names) == 1:
        return 1.0
    rows = problem.source.take(ids)
    small = CSRSource(rows) if isinstance(rows, CSRRows) else ArraySource(rows)
    sample = Problem(small, codes, problem.kernel)
    model = fit(sample, TrainOptions(C=options.C, tol=1e-2)).model
    return len(model.support_vectors) / len(ids)


def _lines(plan: MemoryPlan, result: dict[str, Any]) -> list[str]:
    """The plan and the estimate for people."""
    n_bytes, support = result["kernel_value_bytes"], result["support_at_most"]
    limit = "no limit given" if plan.limit is None else f"limit {format_bytes(plan.limit)}"
    return [
        *(f"{name:<38}{format_bytes(size):>10}" for name, size in plan.terms().items()),
        f"{'in all':<38}{format_bytes(plan.total()):>10}  ({limit})",
        "",
        f"reads {result['rows_per_second']:.3g} rows/s, computes "
        f"{result['kernel_values_per_second']:.3g} kernel values/s",
        f"support vectors: {100 * result['support_share_of_sample']:.0f} % of a sample, so at most "
        f"about {support}; the share falls as the data grow",
        f"kernel values between so many take {n_bytes} bytes each, "
        f"{format_bytes(n_bytes * support**2)} if all are held",
        f"a pass reads {format_bytes(result['sweep_bytes'])} and takes at most about "
        f"{result['sweep_seconds_at_most']:.3g} s, a whole run "
        f"{result['seconds_at_most']:.3g} s; starting the program adds about a second",
    ]
