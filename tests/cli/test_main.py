"""Statuses, messages and streams of all commands, inside and outside this process."""

import csv
import errno
import logging
import os
import pty
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from unittest.mock import Mock

import h5py
import numpy as np
import pytest

import ooc_fw as package
from ooc_fw.system.errors import DeferredInterrupt, InputError, OutOfTimeError

PROGRAM = [sys.executable, "-m", "ooc_fw"]


@pytest.fixture
def failing(monkeypatch):
    """Have ``ooc-fw demo`` raise an error."""
    return lambda error: monkeypatch.setattr("ooc_fw.cli.demo.run", Mock(side_effect=error))


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (InputError("data.h5 is empty; give rows"), 2, "data.h5 is empty; give rows"),
        (OutOfTimeError("time is over"), 3, "time is over"),
        (OSError(errno.ENOSPC, "No space left", "m.h5"), 3, "m.h5: No space left"),
        (OSError("disk on fire"), 3, "disk on fire"),
        (MemoryError("8 GiB"), 3, "out of memory: 8 GiB"),
        (OSError(errno.ENOMEM, "None left"), 3, "out of memory: [Errno 12] None left"),
        (RuntimeError("can't start new thread"), 3, "out of memory: can't start new thread"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_a_failure_is_one_sentence_and_a_status(failing, ooc_fw, error, status, message):
    failing(error)
    assert ooc_fw("demo") == (status, "", f"ooc-fw: {message}\n")


def test_a_signal_that_an_import_swallowed_ends_the_command(ooc_fw, monkeypatch, here):
    monkeypatch.setattr("ooc_fw.system.errors.raised", [15])
    monkeypatch.setattr("ooc_fw.cli.main.raised", [15])
    assert ooc_fw("info", "d.h5") == (143, "", "ooc-fw: interrupted\n")
    with pytest.raises(KeyboardInterrupt), DeferredInterrupt():
        raise AssertionError


def test_under_a_limit_of_addresses_errors_of_libraries_are_about_memory(
    failing, ooc_fw, monkeypatch
):
    failing(ImportError("x.so: failed to map it"))
    monkeypatch.setattr("resource.getrlimit", lambda kind: (4 << 30, 4 << 30))
    said = "ooc-fw: out of memory: x.so: failed to map it; raise the limit of ulimit -v\n"
    assert ooc_fw("demo") == (3, "", said)


@pytest.mark.process
@pytest.mark.parametrize("limit", ["-v 400000", "-d 2000000"])
def test_too_few_addresses_are_refused_before_libraries_hang(here, limit):
    command = f"ulimit {limit}; exec {shlex.join(PROGRAM)} certify m.h5 d.h5"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "MiB of addresses" in done.stderr


def test_an_error_of_the_program_itself_shows_its_traceback_on_demand(failing, ooc_fw, monkeypatch):
    failing(ZeroDivisionError("0 / 0\x1b[2J"))
    status, out, err = ooc_fw("demo")
    assert (status, out, err.count("\n")) == (3, "", 1)
    assert err.startswith("ooc-fw: ZeroDivisionError: 0 / 0\\x1b[2J; it is an error of ooc-fw")
    monkeypatch.setenv("OOC_FW_TRACEBACK", "1")
    status, out, traced = ooc_fw("demo")
    assert (status, out) == (3, "")
    assert traced.endswith("ZeroDivisionError: 0 / 0\\x1b[2J\n" + err)


def test_warnings_are_one_line_each_and_leave_the_status(monkeypatch, ooc_fw):
    def action(args):
        warnings.warn("not shuffled", UserWarning, stacklevel=1)
        warnings.warn("full; joblib will operate in serial mode", UserWarning, stacklevel=1)
        logging.getLogger("ooc_fw.model.record").warning("scaled %s", "oddly")
        return 1

    monkeypatch.setattr("ooc_fw.cli.demo.run", action)
    said = "ooc-fw: warning: not shuffled\nooc-fw: warning: scaled oddly\n"
    assert ooc_fw("demo") == (1, "", said)


def test_version(ooc_fw):
    assert ooc_fw("--version") == (0, f"ooc-fw {package.__version__}\n", "")


def test_every_guide_is_printed(ooc_fw):
    listed = re.findall("^- `([^`]+)`", ooc_fw("help").out, flags=re.MULTILINE)
    assert len(listed) > 8
    for topic in listed:
        outcome = ooc_fw("help", topic).done()
        assert outcome.out.startswith("# ")


def test_options_stand_anywhere_among_the_files(ooc_fw, here):
    ooc_fw("split", "d.h5", "--seed", 1, "a.h5", "--json", "b.h5").done()
    ooc_fw("split", "--seed", 1, "d.h5", "c.h5", "d2.h5").done()
    assert Path("a.h5").read_bytes() == Path("c.h5").read_bytes()
    assert Path("b.h5").read_bytes() == Path("d2.h5").read_bytes()


# -- what the terminal shows -----------------------------------------------------------------------

ORDERS = "\x1b]0;title\x07\x1b[2J", "\x9b31m\u202e\nfake  1"
"""What a terminal obeys, and what would pass for another line or text."""


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """Work in a folder of files with orders to a terminal in labels, names and text."""
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    labels = [f"label{ORDERS[int(x > 0)]}" for x in X[:, 0]]
    with h5py.File("d.h5", "w") as file:
        file["X"], file["y"] = X, labels
        file[f"other{ORDERS[0]}"] = np.zeros(3)
        file.attrs[f"note{ORDERS[1]}"] = ORDERS[0]
    with h5py.File("w.h5", "w") as file:
        file["X"], file["y"] = X, [f"a{ORDERS[0]}" if x > 0 else "b" for x in X[:, 0]]
    with open("d.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([f"a{ORDERS[0]}", f"b{ORDERS[1]}", "y"])
        writer.writerows(zip(*X.T.tolist(), labels, strict=True))
    Path("d.txt").write_text(f"1 1:2\n1 {ORDERS[0]}:3\n")
    Path("d.bin").write_bytes("".join(ORDERS).encode() * 9 + b"\xff\x00")


def test_files_give_no_orders_to_the_terminal(ooc_fw, hostile):
    for command in (
        "info d.h5",
        "info d.csv --label y",
        "info d.bin",
        "convert d.txt x.h5",
        "convert d.csv c.h5 --label y",
        "info c.h5",
        "train d.h5 -o m.h5 --verbose",
        "train c.h5 -o n.h5",
        "train d.h5 -o x.h5 --class-weight z=1",
        "tune d.h5 --C 1 --kernel rbf --gamma auto",
        "info m.h5",
        "evaluate m.h5 d.h5",
        "importance n.h5 c.h5",
        "evaluate n.h5 d.csv --label y",
        "predict n.h5 d.bin -o x.csv",
        "certify m.h5 d.h5",
        "split d.h5 x.h5 z.h5",
    ):
        outcome = ooc_fw(*command.split())
        text = outcome.out + outcome.err
        assert all(c.isprintable() or c == "\n" for c in text), (command, text)
        assert "\nfake" not in text, command


@pytest.mark.process
def test_predictions_are_escaped_on_a_terminal_only(ooc_fw, hostile):
    name = f"a{ORDERS[0]}"
    ooc_fw("train", "w.h5", "-o", "w.model.h5", "--quiet").done()
    assert set(ooc_fw("predict", "w.model.h5", "w.h5").out.splitlines()) == {name, "b"}
    ours, theirs = pty.openpty()
    subprocess.run([*PROGRAM, "predict", "w.model.h5", "w.h5"], stdout=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert set(shown.splitlines()) == {name.encode("unicode_escape").decode(), "b"}


# -- the process -----------------------------------------------------------------------------------


@pytest.mark.process
def test_a_closed_pipe_is_quiet(model_file, data_file):
    reading, writing = os.pipe()
    os.close(reading)
    command = [*PROGRAM, "predict", model_file, data_file]
    program = subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    _, err = program.communicate()
    assert (program.returncode, err) == (141, "")  # as after SIGPIPE


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("predict m.h5 d.h5 >&-", 0, ""),
        ("predict m.h5 d.h5 2>&-", 0, ""),
        ("predict m.h5 d.h5 >&- 2>&- <&-", 0, ""),
        ("convert - new.h5 <&-", 2, "standard input holds no rows"),
    ],
)
def test_standard_streams_may_be_closed(here, line, status, said):
    command = f"exec {shlex.join(PROGRAM)} {line}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == status
    assert said in done.stderr
    assert bool(done.stderr) == bool(said)
    assert bool(done.stdout) == line.endswith(" 2>&-")


@pytest.mark.process
def test_a_terminal_without_unicode_shows_escapes(tmp_path):
    (tmp_path / "t.csv").write_text("\xe9,\u4e00,y\n" + "1,2,0\n3,4,1\n" * 9, encoding="utf-8")
    plain = os.environ | {"PYTHONIOENCODING": "ascii:strict"}
    words = [*PROGRAM, "info", str(tmp_path / "t.csv")]
    shown = subprocess.run(words, capture_output=True, check=True, env=plain).stdout
    assert rb"\xe9" in shown
    assert rb"\u4e00" in shown


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "modules"),
    [
        ("train d.h5 -o n.h5 --quiet", "sklearn dask distributed"),
        ("plot --help", "matplotlib numpy"),
    ],
)
def test_modules_that_are_not_loaded(here, command, modules):
    code = f"""
import sys
from ooc_fw.cli.main import main
main({command.split()})
sys.exit(any(name.partition('.')[0] in {modules.split()} for name in sys.modules))
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
