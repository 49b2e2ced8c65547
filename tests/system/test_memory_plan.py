import re
import resource
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.system.errors import InputError
from ooc_fw.system.memory import (
    OverLimitError,
    Workload,
    format_bytes,
    landmark_terms,
    least_bytes,
    memory_total,
    parse_bytes,
    peak_rss_bytes,
    plan_landmarks,
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
        block_rows=(block_rows := draw(st.integers(0, 1 << 14))),
        least_rows=draw(st.integers(0, block_rows)),
        n_features=draw(st.integers(1, 10**7)),
        read_bytes=draw(st.integers(0, 64 * MIB)),
        held_bytes=draw(st.integers(0, 64 * MIB)),
        sparse=draw(st.booleans()),
        cacheable=draw(st.booleans()),
        full_oracle=draw(st.booleans()),
        weighted=draw(st.booleans()),
        targets=draw(st.booleans()),
        n_classifiers=draw(st.integers(1, 50)),
        in_unit=draw(st.booleans()),
        saved=draw(st.booleans()),
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
    work = Workload(n_rows=10**8, decoded_bytes=10**10, block_bytes=MIB, weighted=True)
    with pytest.raises(InputError, match=r"numbers for each row .* 5.9. GiB .* would do is \d+MiB"):
        plan_memory(work, 1 << 30, 0)
    large = Workload(n_rows=10**4, decoded_bytes=10**9, block_bytes=1, read_bytes=2 << 30)
    with pytest.raises(InputError, match=r"buffers.*ooc-fw convert .*would do is \d+MiB"):
        plan_memory(large, 1 << 30, 0)


def test_a_hundred_million_rows_fit_in_two_gibibytes():
    """Labels, classes and a screen of rows of the same norm take 13 bytes a row."""
    work = Workload(n_rows=10**8, decoded_bytes=32 * 10**8, block_bytes=4 * MIB, n_features=8)
    plan = plan_memory(replace(work, in_unit=True), 2 << 30, 0)
    assert plan.max_vertices > 10_000
    for heavier in ({"weighted": True}, {"saved": True}, {"n_classifiers": 3}, {"targets": True}):
        with pytest.raises(OverLimitError):
            plan_memory(replace(work, in_unit=True, **heavier), 2 << 30, 0)


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
    assert 4 * 1000**2 <= plan.parts["kernel_rows"] < 32 * MIB
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
    scratch = (each.parts["scratch"] // each.max_threads for each in (plain, sparse))
    assert next(scratch) + more == next(scratch)
    assert sparse.max_threads < plain.max_threads
    more = plan_memory(replace(work, read_bytes=7 * MIB, held_bytes=5 * MIB), 1 << 30, 0)
    assert more.parts["buffers"] == plain.parts["buffers"] + 7 * MIB
    assert more.parts["program"] == plain.parts["program"] + 5 * MIB


def test_vertices_are_planned_with_all_copies_of_their_rows():
    """As read, centred and growing, and for products in float32 and (twice as wide) float64."""
    wide = Workload(n_rows=10**5, decoded_bytes=10**5 * 8000, block_bytes=MIB)
    plan = plan_memory(wide, 1 << 30, 0)
    assert plan.parts["vertices"] >= plan.max_vertices * 6 * 8000
    assert plan_memory(replace(wide, decoded_bytes=0), 1 << 30, 0).max_vertices > plan.max_vertices


@pytest.mark.parametrize("limited", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_ulimits_leave_room_for_what_is_reserved(tmp_path, monkeypatch, limited):
    limits = {limited: (4 << 30, resource.RLIM_INFINITY)}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits.get(kind, (-1, -1)))
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


def refusal(*arguments):
    """The error of `plan_landmarks`, if it raises one."""
    try:
        plan_landmarks(*arguments)
    except OverLimitError as error:
        return error
    return None


@given(workloads(), st.integers(0, 1 << 42), st.integers(1, 8))
def test_landmarks_fit_and_no_more_of_them_would(work, limit, threads):
    refused = refusal(work, limit, 0, 1)
    if refused is not None:
        assert limit < refused.needed == plan_landmarks(work, refused.needed, 0, 1).total()
        return
    plan = plan_landmarks(work, limit, 0, 1, work.n_rows, threads)
    compiler = plan.parts["program"] - landmark_terms(work, 1)["program"]
    assert 0 <= compiler <= 144 * MIB
    assert plan.total() + plan.row_cache <= limit
    all_values = 2 * work.n_rows * plan.landmarks * work.in_unit
    assert plan.parts["kernel_values"] == min(
        all_values, limit - plan.row_cache - (plan.total() - plan.parts["kernel_values"])
    )
    assert 8 * plan.landmarks**2 * (1 + work.n_classifiers) <= plan.total()
    assert 1 <= plan.max_threads <= threads
    other = plan_landmarks(work, limit, 0, 1, work.n_rows, 9 - threads)
    assert other.landmarks == plan.landmarks
    more = sum(landmark_terms(work, plan.landmarks + 1, 2).values())
    assert plan.landmarks == work.n_rows or more > limit - compiler


@given(workloads(), st.integers(1, 10_000), st.integers(0, 1 << 40))
def test_landmarks_that_are_asked_for_take_the_smallest_limit_that_is_named(work, wanted, limit):
    refused = refusal(work, limit, 0, wanted, None, 4)
    if refused is None:
        assert plan_landmarks(work, limit, 0, wanted).landmarks == wanted
        return
    needed = parse_bytes(str(refused).rpartition(" ")[2])
    assert needed >= refused.needed > limit
    assert refusal(work, needed, 0, wanted) is None
    assert refusal(work, refused.needed - 1, 0, wanted) is not None
    fewer = re.search(r"--landmarks (\d+) would fit", str(refused))
    if fewer is not None:
        assert 20 <= int(fewer[1]) < wanted
        assert refusal(work, limit, 0, int(fewer[1])) is None
        assert refusal(work, limit, 0, int(fewer[1]) + 1) is not None


def test_a_small_run_that_is_asked_for_is_begun_wherever_no_limit_is_given():
    work = Workload(n_rows=4000, decoded_bytes=MIB, block_bytes=MIB)
    assert plan_landmarks(work, None, 0, 4000).landmarks == 4000
    assert refusal(work, None, 0, 20, 4000) is not None
    assert refusal(replace(work, n_rows=10**6), None, 0, 10**5) is not None


def test_rows_that_are_set_apart_by_class_are_planned():
    """In files, or a second time in memory."""
    two = Workload(n_rows=1000, decoded_bytes=500 * MIB, block_bytes=MIB, weighted=True)
    many = replace(two, n_classifiers=5)
    assert least_bytes(many) == least_bytes(two) + 8 * 1000 + 32 * MIB
    assert least_bytes(replace(many, sparse=True)) == (
        least_bytes(replace(two, sparse=True)) + 16 * 1000 + 32 * MIB
    )
    held = least_bytes(replace(many, cacheable=False))
    assert held == least_bytes(two) + 8 * 1000 + 500 * MIB


def test_blocks_are_as_long_as_the_rows_and_the_limit_allow():
    few = Workload(n_rows=300, decoded_bytes=24 * MIB, block_bytes=4 * MIB, block_rows=300)
    assert plan_memory(few, 1 << 30, 0).parts["buffers"] == 6 * 24 * MIB
    wide = replace(few, n_rows=20_000, decoded_bytes=20_000 * MIB, block_rows=16_384, least_rows=32)
    least = least_bytes(wide)
    assert plan_memory(wide, least, 0).max_block == 32
    between = plan_memory(wide, least + 1200 * MIB, 0)
    assert (between.max_block, between.parts["buffers"]) == (120, 6 * 120 * MIB)
    assert plan_memory(wide, 200 << 30, 0).max_block == 16_384
    # A long block leaves for the rest what it always left.
    enough = least + 6 * (16_384 - 32) * MIB
    assert plan_memory(wide, enough - 1, 0).max_block < 16_384
    assert plan_memory(wide, enough, 0).total() <= enough
