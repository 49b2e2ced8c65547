import threading
import time

import pytest

from ooc_fw.convert.readers import ordered_map


def slow_at_first(number: int) -> int:
    time.sleep(0.002 * (number < 2))
    return number


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_order_is_kept_and_little_is_in_flight(threads):
    made = 0

    def items():
        nonlocal made
        for number in range(20):
            made += 1
            yield number

    for used, item in enumerate(ordered_map(slow_at_first, items(), threads)):
        assert item == used
        assert made <= used + threads + 1
    assert made == 20


def test_an_exception_comes_in_its_place_and_threads_end():
    def fail_at_three(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    results = ordered_map(fail_at_three, range(100), threads=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
    assert not [t for t in threading.enumerate() if t.name.startswith("ooc-fw-prep")]
