"""`ooc-fw plot`, on logs of real runs."""

import json

import pytest

from ooc_fw.cli.main import main
from tests.support.methods import grid

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def logs(data_file, text_file, tmp_path_factory):
    """Logs of a corrective, a single-step and a streamed run."""
    folder = tmp_path_factory.mktemp("logs")
    logs = []
    for name, data, more in (
        ("corrective", data_file, []),
        ("mfw", data_file, ["--method", "mfw", "--max-iter", "300", "--memory", "2GiB"]),
        ("stream", text_file, ["--stream"]),
    ):
        logs.append(folder / f"{name}.jsonl")
        arguments = ["train", data, "-o", folder / "m.h5", "--quiet", "--log", logs[-1], *more]
        assert main([str(argument) for argument in arguments]) == 0
    return logs


def events_of(log):
    return [json.loads(line) for line in log.read_text().splitlines() if line]


@pytest.mark.parametrize(
    ("name", "begins", "more"),
    grid(
        [
            ("gap.PDF", b"%PDF", ["--panels", "support"]),
            ("gap.png", b"\x89PNG", ["--panels", "memory"]),
            ("gap.svg", b"<?xml", ["--panels", "gap,memory"]),
        ],
        quick=1,
    ),
)
def test_plot(ooc_fw, logs, tmp_path, name, begins, more):
    figure = tmp_path / name
    assert ooc_fw("plot", *logs, "-o", figure, *more) == (0, f"{figure}\n", "")
    assert figure.read_bytes().startswith(begins)


@pytest.mark.grid
def test_logs_of_runs_that_died(ooc_fw, logs, tmp_path):
    """Their figures have default names."""
    path = tmp_path / "cut.jsonl"
    path.write_text(logs[0].read_text().splitlines()[0])
    ooc_fw("plot", path).assert_refused("no progress to draw")
    path.write_bytes(logs[1].read_bytes()[:-800])
    assert ooc_fw("plot", path, "--panels", "gap").out == f"{path.with_suffix('.png')}\n"
    assert ooc_fw("plot", path, logs[0]).out == f"{path.with_suffix('.png')}\n"


@pytest.mark.grid
def test_a_resumed_run_continues_in_its_log(ooc_fw, data_file, tmp_path):
    log, checkpoint = tmp_path / "run.jsonl", tmp_path / "run.ckpt"
    run = ["train", data_file, "-o", tmp_path / "m.h5", "--quiet", "--log", log, "--method", "mfw"]
    ooc_fw(*run, "--max-iter", 50, "--checkpoint", checkpoint)
    ooc_fw(*run, "--max-iter", 90, "--resume", checkpoint).done()
    assert [event["event"] for event in events_of(log)].count("start") == 2
    ooc_fw("plot", log, "-o", tmp_path / "f.svg", "--panels", "gap").done()
