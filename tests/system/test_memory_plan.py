import re
import resource
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.system.errors import InputError
from ooc_fw.system.memory import (
    Workload,
    format_bytes,
    landmark_terms,
    landmarks_that_fit,
    memory_total,
    parse_bytes,
    peak_rss_bytes,
    plan_memory,
    rss_bytes,
)

MIB = 1 << 20


@st.composite
def workloads(draw):
    n_rows = draw(st.integers(1, 10**7))
    return Workload(
        n_rows=n_rows,
        decoded_bytes=n_rows * draw(st.integers(0, 20_000)),
        block_bytes=draw(st.integers(0, 64 * MIB)),
        n_features=draw(st.integers(1, 10**7)),
        read_bytes=draw(st.integers(0, 64 * MIB)),
        held_bytes=draw(st.integers(0, 64 * MIB)),
        sparse=draw(st.booleans()),
        cacheable=draw(st.booleans()),
        full_oracle=draw(st.booleans()),
    )


@given(workloads(), st.integers(0, 1 << 42))
def test_the_terms_add_up_to_no_more_than_the_limit(work, limit):
    try:
        plan = plan_memory(work, limit, 0)
    except InputError as error:
        needed = parse_bytes(str(error).rpartition(" ")[2])
        assert needed > limit
        smallest = plan_memory(work, needed, 0)
        assert sum(smallest.terms().values()) <= needed
    else:
        terms = plan.terms()
        assert sum(terms.values()) <= limit
        assert min(terms.values()) >= 0
        assert 1 <= plan.max_vertices <= work.n_rows
        assert plan.max_threads >= 1


def test_a_refusal_names_the_largest_part_and_the_way_out():
    work = Workload(n_rows=10**8, decoded_bytes=10**10, block_bytes=MIB)
    with pytest.raises(InputError, match=r"numbers for each row .* 5.9. GiB .* would do is \d+MiB"):
        plan_memory(work, 1 << 30, 0)
    large = Workload(n_rows=10**4, decoded_bytes=10**9, block_bytes=1, read_bytes=1 << 30)
    with pytest.raises(InputError, match=r"chunks of 128 MiB; ooc-fw convert .*would do is \d+MiB"):
        plan_memory(replace(large, chunk_bytes=128 * MIB), 1 << 30, 0)


@given(workloads(), st.integers(0, 1 << 42))
def test_without_a_limit_half_of_all_memory_is_divided(work, available):
    plan = plan_memory(work, None, available)
    least = plan_memory(work, None, 0)
    assert least.total() <= plan.total() <= max(available // 2, least.total())
    assert plan.limit is None


def test_without_a_limit_small_files_are_kept_and_no_more_is_planned_than_a_run_can_use():
    work = Workload(n_rows=1000, decoded_bytes=MIB, block_bytes=MIB)
    plan = plan_memory(work, None, 64 << 30)
    assert plan.row_cache == MIB
    assert 4 * 1000**2 <= plan.kernel_rows < 32 * MIB
    assert plan.max_vertices == 1000


def test_larger_files_are_kept_for_a_full_oracle_alone():
    work = Workload(n_rows=1000, decoded_bytes=1 << 30, block_bytes=MIB)
    assert plan_memory(work, None, 64 << 30).row_cache == 0
    full = replace(work, full_oracle=True)
    assert plan_memory(full, None, 64 << 30).row_cache == 2 << 30  # as read, and for products
    assert plan_memory(replace(full, cacheable=False), None, 64 << 30).row_cache == 1 << 30
    assert plan_memory(full, None, 8 << 30).row_cache == 0


def test_scratch_reading_and_rows_held_are_part_of_the_plan():
    work = Workload(n_rows=50_000, decoded_bytes=10 * MIB, block_bytes=MIB, n_features=10**6)
    plain = plan_memory(work, 1 << 30, 0)
    sparse = plan_memory(replace(work, sparse=True), 1 << 30, 0)
    more = 4 * 10**6 + 3 * MIB
    assert sparse.scratch // sparse.max_threads == plain.scratch // plain.max_threads + more
    assert sparse.max_threads < plain.max_threads
    more = plan_memory(replace(work, read_bytes=7 * MIB, held_bytes=5 * MIB), 1 << 30, 0)
    assert more.buffers == plain.buffers + 7 * MIB
    assert more.program == plain.program + 5 * MIB


def test_ulimit_v_leaves_room_for_what_is_reserved(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4 << 30, resource.RLIM_INFINITY))
    assert 0 < memory_total(str(tmp_path)) <= 1 << 30
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, resource.RLIM_INFINITY))
    assert memory_total(str(tmp_path)) == 0


def test_sizes_are_parsed_and_printed():
    sizes = {
        **{"1000000": 10**6, "12 B": 12, "1GiB": 1 << 30, "600mib": 600 * MIB, "2g": 2 << 30},
        **{"1.5 kB": 1500, "1TB": 10**12},
    }
    assert {text: parse_bytes(text) for text in sizes} == sizes
    for text in ("", "much", "-1", "1GiBs", "1 2", "9" * 30):
        with pytest.raises(InputError, match=re.escape(repr(text))):
            parse_bytes(text)
    texts = {5: "5 B", 2048: "2 KiB", 3 << 20: "3 MiB", 1 << 40: "1 TiB"}
    assert {size: format_bytes(size) for size in texts} == texts


def test_peak_rss_is_that_of_this_process():
    assert 10 * MIB < rss_bytes() <= peak_rss_bytes() < 1 << 40


@given(workloads(), st.integers(1, 50), st.integers(0, 1 << 42), st.integers(1, 8))
def test_landmarks_fit_and_no_more_of_them_would(work, n_classifiers, limit, threads):
    most = landmarks_that_fit(work, n_classifiers, limit, 0, threads)
    assert most == landmarks_that_fit(work, n_classifiers, None, 2 * limit, threads)
    sizes = [
        sum(landmark_terms(work, n_classifiers, n, threads).values()) for n in (most, most + 1)
    ]
    assert most == 0 or sizes[0] <= limit
    assert most == work.n_rows or sizes[1] > limit
    assert sizes[0] >= 8 * most**2 * (1 + n_classifiers)
