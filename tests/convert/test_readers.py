import threading
import time
from functools import partial

import pytest

from ooc_fw.convert.readers import ordered_map, prefetch


def slow_at_first(number: int) -> int:
    time.sleep(0.002 * (number < 2))
    return number


@pytest.mark.parametrize(
    ("run", "ahead"),
    [(prefetch, 2), *((partial(ordered_map, slow_at_first, threads=n), n + 1) for n in (1, 2, 5))],
)
def test_order_is_kept_and_little_is_in_flight(run, ahead):
    made = 0

    def items():
        nonlocal made
        for number in range(20):
            made += 1
            yield number

    for used, item in enumerate(run(items())):
        assert item == used
        assert made <= used + ahead
    assert made == 20


@pytest.mark.parametrize("in_items", [False, True])
def test_an_exception_comes_in_its_place_and_threads_end(in_items):
    def fail_at_three(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    results = ordered_map(fail_at_three, range(100), threads=2)
    if in_items:
        results = prefetch(map(fail_at_three, range(100)))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
    assert not [t for t in threading.enumerate() if t.name.startswith("ooc-fw-prep")]
