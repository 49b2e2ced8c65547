from __future__ import annotations

import threading
import time

import pytest

from ooc_fw.convert.pipeline import ordered_map, prefetch


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_order_is_kept(threads):
    def slow_at_first(number: int) -> int:
        time.sleep(0.002 * (number < 2))
        return number**2

    assert list(ordered_map(slow_at_first, range(20), threads=threads)) == [n**2 for n in range(20)]


def test_few_items_are_in_flight():
    taken = 0

    def items():
        nonlocal taken
        for number in range(50):
            taken += 1
            yield number

    for used, _ in enumerate(ordered_map(abs, items(), threads=2)):
        assert taken <= used + 3


def test_exception_comes_in_its_place_and_threads_end():
    def fail_at_three(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    results = ordered_map(fail_at_three, range(100), threads=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
    assert not [t for t in threading.enumerate() if t.name.startswith("ooc-fw-prep")]


def test_prefetch_keeps_order_and_is_one_ahead():
    made = 0

    def items():
        nonlocal made
        for number in range(20):
            made += 1
            yield number

    for used, item in enumerate(prefetch(items())):
        assert item == used
        assert made <= used + 2
    assert made == 20


def test_prefetch_passes_on_errors():
    def items():
        yield 1
        raise ValueError("after one")

    results = prefetch(items())
    assert next(results) == 1
    with pytest.raises(ValueError, match="after one"):
        next(results)
