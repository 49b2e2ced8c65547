"""Signals at random moments over all commands: a status, no traceback, no hang, inputs intact."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ooc_fw.cli.main import main

SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
LONGEST = 3.0  # seconds from the beginning in which signals arrive
PATIENCE = 60.0  # seconds for an answer on a machine that computes for others
COMMANDS = """
convert long.txt OUT.h5 --scale standard
convert table.csv OUT.h5 --label y --target-encode word
info table.csv
split rows.h5 OUT-a.h5 OUT-b.h5
train rows.h5 -o OUT.h5 --checkpoint OUT.ckpt --checkpoint-every 0.05
train rows.h5 -o OUT.h5 --landmarks 100 --log OUT.log
train rows.h5 -o OUT.h5 --probability
train rows.h5 -o OUT.h5 --exact
train --stream long.txt -o OUT.h5
tune rows.h5 -o OUT.h5 --max-time 5
predict model.h5 long.txt -o OUT.txt
evaluate model.h5 rows.h5
certify model.h5 rows.h5
importance model.h5 rows.h5
export model.h5 OUT.onnx
plot run.log -o OUT.png
verify rows.h5
warm-up
""".split("\n")[1:-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, long_text):
    """Inputs of all commands."""
    folder = tmp_path_factory.mktemp("signals")
    (folder / "long.txt").symlink_to(long_text)
    cells = "".join(f"w{k % 50},{k * k % 97},{k % 2}\n" for k in range(15_000))
    (folder / "table.csv").write_text(f"word,x,y\n{cells}")
    for command in (
        "convert {0}/long.txt {0}/rows.h5",
        "train {0}/rows.h5 -o {0}/model.h5 --landmarks 50 --log {0}/run.log",
    ):
        assert main([*command.format(folder).split(), "--quiet"]) == 0
    return folder


def contents(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).digest() for path in folder.iterdir()}


def start(command, folder, scratch):
    """Run a command in a folder of its own; it catches signals by then, or has ended."""
    scratch.mkdir()
    words = [
        str(folder / word) if (folder / word).is_file() else word.replace("OUT", f"{scratch}/o")
        for word in command.split()
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "ooc_fw", *words],
        env=os.environ | {"TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not catches(process, signal.SIGTERM):
        time.sleep(0.002)
    return process


def catches(process, number):
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (mask,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(mask >> (number - 1) & 1)


def what_is_wrong(process, scratch, after, numbers):
    """Send signals, each so many seconds after the one before, and look at the end."""
    for number in numbers:
        try:
            process.wait(after)
            break
        except subprocess.TimeoutExpired:
            process.send_signal(number)
    try:
        _, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"hangs: {process.communicate()}"
    expected = {0, *(128 + number for number in numbers)}
    left = [path.name for path in scratch.iterdir() if "tmp" in path.name]
    left += [path.name for path in scratch.glob("ooc-fw-*")]
    if process.returncode in expected and "Traceback" not in err and not left:
        return ""
    return f"status {process.returncode}, left {left}: {err}"


@pytest.mark.process
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("n_signals", [1, pytest.param(13, marks=pytest.mark.long)])
def test_signals_at_random_moments(folder, tmp_path, command, n_signals):
    """One in four comes twice."""
    draw, before = random.Random(f"{command} {n_signals}"), contents(folder)
    for k in range(n_signals):
        numbers = draw.sample(SIGNALS, 1 if draw.random() < 0.75 else 2)
        after = LONGEST * draw.random() / len(numbers)
        process = start(command, folder, tmp_path / f"run{k}")
        assert not what_is_wrong(process, tmp_path / f"run{k}", after, numbers), (numbers, after)
    assert contents(folder) == before
