"""The memory plan as a pure function: its sum, its refusals, its monotony."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.errors import InputError
from ooc_fw.memory import Workload, format_bytes, parse_bytes, peak_rss_bytes, plan_memory

MIB = 1 << 20


@st.composite
def workloads(draw):
    n_rows = draw(st.integers(1, 10**7))
    return Workload(
        n_rows=n_rows,
        decoded_bytes=n_rows * draw(st.integers(0, 20_000)),
        block_bytes=draw(st.integers(0, 64 * MIB)),
        threads=draw(st.integers(1, 64)),
        cacheable=draw(st.booleans()),
        full_oracle=draw(st.booleans()),
    )


@given(workloads(), st.integers(0, 1 << 42))
def test_the_terms_add_up_to_no_more_than_the_limit(work, limit):
    try:
        plan = plan_memory(work, limit, 80 * MIB)
    except InputError as error:
        needed = parse_bytes(str(error).rpartition(" ")[2])
        assert needed > limit
        smallest = plan_memory(work, needed, 80 * MIB)
        assert sum(smallest.terms().values()) <= needed
    else:
        terms = plan.terms()
        assert sum(terms.values()) <= limit
        assert min(terms.values()) >= 0
        assert 1 <= plan.max_vertices <= work.n_rows


def test_a_refusal_names_the_largest_part_and_the_way_out():
    work = Workload(n_rows=10**8, decoded_bytes=10**10, block_bytes=MIB, threads=2)
    with pytest.raises(InputError, match=r"numbers for each row .* 3.7. GiB .* would do is \d+MiB"):
        plan_memory(work, 1 << 30, 80 * MIB)


def test_without_a_limit_small_files_are_kept_and_kernel_rows_take_half_of_what_is_free():
    work = Workload(n_rows=1000, decoded_bytes=MIB, block_bytes=MIB, threads=2)
    plan = plan_memory(work, None, 80 * MIB)
    assert plan.row_cache == MIB
    assert plan.kernel_rows > 0
    assert plan.max_vertices == 1000


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000000", 10**6),
        ("1GiB", 1 << 30),
        ("600MiB", 600 * MIB),
        ("2g", 2 << 30),
        ("1.5 kB", 1536),
        ("1TB", 1 << 40),
    ],
)
def test_parse_bytes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1", "1GiBs", "1 2"])
def test_what_is_no_size(text):
    with pytest.raises(InputError, match="is no size in bytes"):
        parse_bytes(text)


def test_format_bytes():
    assert [format_bytes(n) for n in (5, 2048, 3 << 20, 1 << 40)] == [
        "5 B",
        "2 KiB",
        "3 MiB",
        "1 TiB",
    ]


def test_peak_rss_is_that_of_this_process():
    assert 10 * MIB < peak_rss_bytes() < 1 << 40
