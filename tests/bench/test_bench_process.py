"""The measured child process. Costs are checked for plausibility only."""

from __future__ import annotations

import sys

import pytest

from bench.process import ChildError, run_measured


def test_output_and_costs_are_those_of_the_child():
    child = run_measured([sys.executable, "-c", "x = bytes(50 << 20); print('done')"])
    assert child.stdout == "done\n"
    assert child.seconds > 0
    assert child.peak_rss_bytes > 50 << 20


def test_a_failure_gives_the_last_line_of_its_errors():
    with pytest.raises(ChildError, match=r"^bad$"):
        run_measured([sys.executable, "-c", "import sys; sys.exit('worse\\nbad')"])


def test_a_child_without_an_end_is_killed():
    with pytest.raises(TimeoutError, match=r"0\.2 s"):
        run_measured([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.2)
