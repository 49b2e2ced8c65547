"""The budget: parts and caches stay within a limit, or a limit is named that would do.

Limits of memory and processors that control groups state are found.
"""

import os
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.system import memory
from ooc_fw.system.errors import InputError
from ooc_fw.system.memory import (
    OverLimitError,
    Workload,
    least_bytes,
    memory_total,
    parse_bytes,
    plan_landmarks,
    plan_memory,
)
from ooc_fw.system.threads import cpu_count

MIB = 1 << 20


@st.composite
def workloads(draw):
    n_rows = draw(st.integers(1, 10**7))
    block_rows = draw(st.integers(0, 1 << 14))
    return Workload(
        n_rows=n_rows,
        decoded_bytes=n_rows * draw(st.integers(0, 20_000)),
        block_rows=block_rows,
        least_rows=draw(st.integers(0, block_rows)),
        n_features=draw(st.integers(1, 10**7)),
        n_classifiers=draw(st.integers(1, 50)),
        block_bytes=draw(st.integers(0, 64 * MIB)),
        read_bytes=draw(st.integers(0, 64 * MIB)),
        held_bytes=draw(st.integers(0, 64 * MIB)),
        **{name: draw(st.booleans()) for name in ("sparse", "cacheable", "weighted", "in_unit")},
    )


def planned(plan_of, limit):
    """The plan for a limit, or for the one that a refusal names; it stays within that."""
    try:
        plan = plan_of(limit)
    except OverLimitError as error:
        limit = parse_bytes(str(error).rpartition(" ")[2])
        plan = plan_of(limit)
    assert plan.kernel_values + plan.row_cache <= plan.planned <= limit
    assert min(plan.kernel_values, plan.row_cache) >= 0
    assert plan.max_threads >= 1
    return plan


@given(workloads(), st.integers(0, 1 << 42))
def test_an_exact_run_stays_within_its_limit_or_names_one_that_would_do(work, limit):
    plan = planned(lambda limit: plan_memory(work, limit, 0), limit)
    assert 1 <= plan.max_vertices <= work.n_rows
    assert work.least_rows <= plan.max_block <= work.block_rows
    least = work.exact(2000, plan.max_block, plan.max_threads)  # with 4 MiB of kernel values
    assert least + plan.row_cache + plan.kernel_values - 4 * MIB <= plan.planned
    free = plan_memory(work, None, limit)
    assert free.planned <= max(limit // 2, least_bytes(work))
    assert free.limit is None


@given(workloads(), st.integers(0, 1 << 42), st.integers(1, 10_000), st.integers(1, 8))
def test_landmarks_fit_or_a_limit_is_named_that_would_do(work, limit, fewest, threads):
    sizes = fewest, fewest + 1000, threads
    plan = planned(lambda limit: plan_landmarks(work, limit, 0, *sizes), limit)
    assert fewest <= plan.landmarks <= fewest + 1000
    assert plan.max_threads <= threads
    least = work.span(plan.landmarks, plan.max_threads)
    assert least + plan.row_cache + plan.kernel_values <= plan.planned
    if plan.limit is not None:
        assert plan_landmarks(work, plan.limit, 0, *sizes[:2]).landmarks == plan.landmarks


def test_a_hundred_million_rows_fit_in_two_gibibytes():
    """Labels, margins, and numbers of rows near the margin take 13 bytes a row."""
    work = Workload(10**8, 32 * 10**8, 4 * MIB, n_features=8, in_unit=True)
    assert plan_memory(work, 2 << 30, 0).max_vertices > 10_000
    with pytest.raises(InputError, match=r"1,024 MiB cannot be met; .* would do is \d+MiB"):
        plan_memory(work, 1 << 30, 0)


@pytest.mark.parametrize("n_rows", [100, 1600, 2048, 4000])
def test_a_small_run_has_room_for_linear_systems(n_rows):
    """With a large C, steps in their place take hundreds of times longer."""
    values = plan_memory(Workload(n_rows, n_rows * 100, MIB), None, 64 << 30).kernel_values
    free = min(n_rows, memory.LARGEST_SYSTEM)
    assert values >= 8 * n_rows**2 + 8 * memory.SYSTEM_COPIES * free**2


def test_a_small_run_begins_anywhere_and_its_rows_are_kept():
    work = Workload(n_rows=4000, decoded_bytes=MIB, block_bytes=MIB)
    assert plan_memory(work, None, 64 << 30).row_cache == MIB
    assert plan_memory(replace(work, decoded_bytes=1 << 30), None, 64 << 30).row_cache == 0
    assert plan_landmarks(work, None, 0, 4000, 4000).landmarks == 4000
    with pytest.raises(OverLimitError):
        plan_landmarks(replace(work, n_rows=10**6), None, 0, 10**5, 10**5)


def test_sizes_in_words():
    sizes = {"1000000": 10**6, "12 B": 12, "1GiB": 1 << 30, "600mib": 600 * MIB, "1.5 kB": 1500}
    assert {text: parse_bytes(text) for text in sizes} == sizes
    for text in ("", "much", "-1", "1GiBs", "1 2", "9" * 30):
        with pytest.raises(InputError, match=re.escape(repr(text))):
            parse_bytes(text)


def test_the_program_is_measured_anew_for_each_run(monkeypatch):
    sizes = {"resident": 1500 * MIB}
    monkeypatch.setattr(memory, "_resident", lambda held: sizes["resident"] - held)
    assert memory.program_bytes(100 * MIB) >= 1400 * MIB
    sizes["resident"] = 150 * MIB  # an array of the user is gone
    assert memory.program_bytes() >= 1400 * MIB  # the plans of a run agree
    memory.measure_program(0)
    assert 150 * MIB <= memory.program_bytes() <= 240 * MIB


FREE = {"a/b/memory.max": "max", "a/b/cpu.max": "max 100000"}
VERSION_1 = {
    "memory/pod/c/memory.limit_in_bytes": 9223372036854771712,  # which stands for no limit
    "memory/pod/memory.limit_in_bytes": MIB,
    "cpu,cpuacct/x/cpu.cfs_quota_us": 300000,
    "cpu,cpuacct/x/cpu.cfs_period_us": 100000,
    "cpu,cpuacct/cpu.cfs_quota_us": -1,
    "cpu,cpuacct/cpu.cfs_period_us": 100000,
}
CASES = {  # groups of the process, files of limits, bytes of memory, processors
    "no limit": ("0::/a/b", FREE, None, 8),
    "own limits": ("0::/a b", {"a b/memory.max": MIB, "a b/cpu.max": "150000 100000"}, MIB, 2),
    "of groups around": ("0::/a/b", FREE | {"a/memory.max": MIB, "cpu.max": "1 100"}, MIB, 1),
    "no numbers": ("0::/../b", {"memory.max": "no", "cpu.max": "no"}, None, 8),
    "group seen as the root": ("0::/docker/12ab", {"memory.max": MIB, "cpu.max": "3 1"}, MIB, 3),
    "version 1": ("5:cpu,cpuacct:/x\n4:memory:/pod/c", VERSION_1, MIB, 3),
    "both versions": ("4:memory:/\n0::/", {"memory/memory.limit_in_bytes": MIB}, MIB, 8),
}


@pytest.mark.parametrize("case", CASES)
def test_limits_of_control_groups(case, tmp_path, monkeypatch):
    groups, files, memory, cpus = CASES[case]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    machine = memory_total(str(tmp_path))
    texts = {f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in files.items()}
    for name, text in (texts | {"proc/self/cgroup": groups}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_total(str(tmp_path)) == (memory or machine)
    assert cpu_count(str(tmp_path)) == cpus
