from pathlib import Path

import pytest

from tests.support.methods import grid


@pytest.mark.parametrize(
    ("name", "begins", "panels"),
    grid(
        [
            ("new.PDF", b"%PDF", "support"),
            ("new.png", b"\x89PNG", "memory"),
            ("new.svg", b"<?xml", "gap,memory"),
        ],
        quick=1,
    ),
)
def test_logs_of_several_runs_share_a_figure(ooc_fw, here, name, begins, panels):
    ooc_fw("train", "d.txt", "--stream", "-o", "n.h5", "--log", "stream.log", "--quiet").done()
    done = ooc_fw("plot", "run.log", "stream.log", "-o", name, "--panels", panels)
    assert done == (0, f"{name}\n", "")
    assert Path(name).read_bytes().startswith(begins)


def test_the_log_of_a_run_that_died_is_drawn_as_far_as_it_goes(ooc_fw, here):
    log = Path("run.log").read_bytes()
    Path("cut.log").write_bytes(log.splitlines()[0])
    ooc_fw("plot", "cut.log").assert_refused("no progress to draw")
    Path("cut.log").write_bytes(log[:-100])
    assert ooc_fw("plot", "cut.log", "--panels", "gap").out == "cut.png\n"
