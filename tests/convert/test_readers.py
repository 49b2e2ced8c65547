"""Work on several threads, whose results come in order."""

import threading
import time

import pytest

from ooc_fw.convert.readers import ordered_map


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_order_is_kept_and_little_is_in_flight(threads):
    begun = []

    def work(number: int) -> int:
        time.sleep(0.002 * (number < 2))
        if number == 18:
            raise ValueError("eighteen")
        return number

    results = ordered_map(work, map(lambda k: begun.append(k) or k, range(100)), threads)
    for expected in range(18):
        assert next(results) == expected
        assert len(begun) <= expected + threads + 1
    with pytest.raises(ValueError, match="eighteen"):  # in its place
        next(results)
    assert not [t for t in threading.enumerate() if t.name.startswith("ooc-fw-prep")]
