"""`ooc-fw report` and `ooc-fw plot`, on logs of real runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def logs(data_file, text_file, tmp_path_factory):
    """Logs of a corrective, a single-step and a streamed run."""
    from ooc_fw.cli.main import main

    folder = tmp_path_factory.mktemp("logs")
    for name, data, more in (
        ("corrective", data_file, []),
        ("mfw", data_file, ["--method", "mfw", "--max-iter", "300", "--memory", "2GiB"]),
        ("stream", text_file, ["--stream"]),
    ):
        log, model = folder / f"{name}.jsonl", folder / f"{name}.h5"
        arguments = ["train", data, "-o", model, "--quiet", "--log", log, *more]
        assert main([str(argument) for argument in arguments]) == 0
    return [folder / f"{name}.jsonl" for name in ("corrective", "mfw", "stream")]


def test_events_hold_what_figures_need(logs):
    events = [json.loads(line) for line in logs[0].read_text().splitlines()]
    start, *between, end = events
    assert start["resume"] is None
    assert start["time"].endswith("+00:00")
    assert all(0 < event["rss_bytes"] <= event["peak_rss_bytes"] for event in between)
    assert between[-1]["phase"] == "certify"
    assert between[-1]["sweep_fraction"] == 1
    assert end["certified_gap"] <= 1e-3


def test_report(ooc_fw, logs, tmp_path):
    outcome = ooc_fw("report", *logs, "-o", tmp_path / "r.html")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == f"{tmp_path / 'r.html'}\n"
    text = (tmp_path / "r.html").read_text()
    for word in ("corrective", "mfw", "stream", "certified gap", "streamed"):
        assert word in text
    for command, name in (("report", "r.html"), ("plot", "p.svg")):
        outcome = ooc_fw(command, *logs, "-o", tmp_path / name, "--json")
        assert json.loads(outcome.out) == {"output": str(tmp_path / name), "runs": 3}


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("gap.png", ["--against", "time"]),
        ("gap.svg", ["--panels", "gap,memory", "--against", "time"]),
        ("gap.PDF", ["--panels", "steps"]),
    ],
)
def test_plot(ooc_fw, logs, tmp_path, name, more):
    outcome = ooc_fw("plot", *logs, "-o", tmp_path / name, *more)
    assert (outcome.status, outcome.err, outcome.out) == (0, "", f"{tmp_path / name}\n")
    magic = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[name[-3:].lower()]
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_default_outputs_stand_beside_the_first_log(ooc_fw, logs):
    assert ooc_fw("plot", *logs[:2], "--panels", "gap").out == f"{logs[0].with_suffix('.png')}\n"


@pytest.mark.parametrize("command", ["plot", "report"])
def test_refused_inputs_and_outputs(ooc_fw, logs, data_file, tmp_path, command):
    output = tmp_path / "x.png"
    outcome = ooc_fw(command, data_file, "-o", output)
    outcome.assert_refused(f"{data_file}, line 1: no JSON object", "train --log")
    ooc_fw(command, logs[0], "-o", logs[0]).assert_refused("would replace the input")
    ooc_fw(command, logs[0], "-o", tmp_path / "no" / "x.png").assert_refused("does not exist")
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "x.jpg"], "has to end in .png, .svg or .pdf"),
        (["--panels", "gap,size"], "--panels knows gap, objective"),
        (["--against", "rows"], "--against knows time, iteration, not 'rows'"),
    ],
)
def test_unusable_options(ooc_fw, logs, arguments, message):
    ooc_fw("plot", logs[0], *arguments).assert_refused(message)


def test_a_run_that_ended_at_once_cannot_be_drawn(ooc_fw, logs, tmp_path):
    path = tmp_path / "cut.jsonl"
    path.write_text(logs[0].read_text().splitlines()[0])
    ooc_fw("plot", path).assert_refused("no progress to draw")
    assert ooc_fw("report", path).status == 0


def test_a_run_that_was_cut_short_is_drawn(ooc_fw, logs, tmp_path):
    path = tmp_path / "cut.jsonl"
    path.write_bytes(logs[1].read_bytes()[:-800])
    assert ooc_fw("plot", path, "--panels", "gap").status == 0
    outcome = ooc_fw("report", path, logs[0])
    assert (outcome.status, outcome.out) == (0, f"{path.with_suffix('.html')}\n")
    assert "The run was killed, or is still under way" in path.with_suffix(".html").read_text()


def test_a_resumed_run_goes_on_in_its_log(ooc_fw, data_file, tmp_path):
    log, checkpoint = tmp_path / "run.jsonl", tmp_path / "run.ckpt"
    common = ["train", data_file, "-o", tmp_path / "m.h5", "--quiet", "--log", log]
    ooc_fw(*common, "--method", "mfw", "--max-iter", 50, "--checkpoint", checkpoint)
    outcome = ooc_fw(*common, "--method", "mfw", "--max-iter", 90, "--resume", checkpoint)
    assert outcome.status == 0
    events = [json.loads(line) for line in log.read_text().splitlines() if line]
    assert [event["event"] for event in events].count("start") == 2
    outcome = ooc_fw("plot", log, "-o", tmp_path / "f.svg", "--panels", "gap")
    assert outcome.status == 0
    assert "resumed" in (tmp_path / "f.svg").read_text()


def test_help_does_not_load_matplotlib():
    code = (
        "import sys; from ooc_fw.cli.main import main; main(['plot', '--help']); "
        "sys.exit('matplotlib' in sys.modules or 'numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
