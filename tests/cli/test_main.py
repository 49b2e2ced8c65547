"""What all commands have in common: statuses, messages, help, usage errors."""

import csv
import errno
import logging
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import h5py
import numpy as np
import pytest

import ooc_fw as package
from ooc_fw.cli.commands import COMMANDS
from ooc_fw.cli.demo import DEMO
from ooc_fw.cli.parser import build_parser
from ooc_fw.options import TrainOptions
from ooc_fw.system.errors import InputError, OutOfTimeError
from ooc_fw.system.threads import cpu_count

PROGRAM = [sys.executable, "-m", "ooc_fw"]


def choices():
    """Parser of each command by its name."""
    (group,) = build_parser()._subparsers._group_actions
    return group.choices


@pytest.fixture
def failing(monkeypatch):
    """Have ``ooc-fw demo`` raise an error."""

    def install(error):
        def raiser(args):
            raise error

        monkeypatch.setattr("ooc_fw.cli.demo.run", raiser)

    return install


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (InputError("data.h5 is empty; give rows"), 2, "data.h5 is empty; give rows"),
        (OutOfTimeError("time is over"), 3, "time is over"),
        (OSError(errno.ENOSPC, "No space left", "m.h5"), 3, "m.h5: No space left"),
        (OSError("disk on fire"), 3, "disk on fire"),
        (MemoryError("8 GiB"), 3, "out of memory: 8 GiB"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_failure_is_one_sentence_and_a_status(failing, ooc_fw, error, status, message):
    failing(error)
    assert ooc_fw("demo") == (status, "", f"ooc-fw: {message}\n")


def test_error_of_the_program_itself_is_a_failure_and_keeps_its_traceback(
    failing, ooc_fw, monkeypatch
):
    """Status 1 is an answer."""
    failing(ZeroDivisionError("0 / 0\x1b[2J"))
    status, out, err = ooc_fw("demo")
    assert (status, out) == (3, "")
    assert err.startswith("ooc-fw: ZeroDivisionError: 0 / 0\\x1b[2J; it is an error of ooc-fw")
    assert err.count("\n") == 1
    monkeypatch.setenv("OOC_FW_TRACEBACK", "1")
    status, out, traced = ooc_fw("demo")
    assert (status, out) == (3, "")
    assert "in raiser" not in err
    assert "ZeroDivisionError: 0 / 0\\x1b[2J\n" in traced.removesuffix(err)
    assert traced.endswith(err)


def test_warnings_are_one_line_each_and_the_status_is_that_of_the_command(monkeypatch, ooc_fw):
    def action(args):
        warnings.warn("not shuffled", UserWarning, stacklevel=1)
        logging.getLogger("ooc_fw.model.record").warning("scaled %s", "oddly")
        return 1

    monkeypatch.setattr("ooc_fw.cli.demo.run", action)
    said = "ooc-fw: warning: not shuffled\nooc-fw: warning: scaled oddly\n"
    assert ooc_fw("demo") == (1, "", said)


@pytest.mark.parametrize("command", [None, *choices()])
def test_help(ooc_fw, command):
    outcome = ooc_fw(*([command] if command else []), "--help")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("usage: ooc-fw")
    assert "SUPPRESS" not in outcome.out


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_described_alike_where_it_is_declared_and_run(name):
    command = COMMANDS[name]
    module, _, function = command.runs.partition(".")
    run = getattr(import_module(f"ooc_fw.cli.{module}"), function)
    assert command.help.partition("\n")[0] == run.__doc__


def test_version(ooc_fw):
    assert ooc_fw("--version") == (0, f"ooc-fw {package.__version__}\n", "")


def test_every_guide_is_printed(ooc_fw):
    listed = re.findall("^- `([^`]+)`", ooc_fw("help").out, flags=re.MULTILINE)
    assert len(listed) > 8
    for topic in listed:
        outcome = ooc_fw("help", topic)
        assert (outcome.status, outcome.err) == (0, "")
        assert outcome.out.startswith("# ")


def test_options_stand_anywhere_among_the_places(ooc_fw, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ooc_fw("demo", "kept").done()
    ooc_fw("split", "kept/train.h5", "--seed", 1, "a.h5", "--json", "b.h5").done()
    ooc_fw("split", "--seed", 1, "kept/train.h5", "c.h5", "d.h5").done()
    for first, second in ("ac", "bd"):
        assert Path(f"{first}.h5").read_bytes() == Path(f"{second}.h5").read_bytes()
    ooc_fw("split", "kept/train.h5", "a.h5").assert_refused("TEST.h5")


def test_commands_are_alike():
    def options_of(command):
        return {name for action in choices()[command]._actions for name in action.option_strings}

    for command in choices().keys() - {"help", "demo"}:
        assert "--json" in options_of(command), command
    for command in ("convert", "train", "tune", "predict", "evaluate", "certify", "verify"):
        assert {"--quiet", "--verbose"} <= options_of(command), command
    for command in ("train", "tune", "predict", "plot"):
        assert {"-o", "--output"} <= options_of(command), command
    assert options_of("train") >= {f"--{name}" for name in ("C", "gamma", "tol", "landmarks")}


def test_threads_are_those_of_the_machine_by_default():
    args = build_parser().parse_args(["train", "d.h5"])
    assert args.threads == cpu_count()
    assert args.tol == TrainOptions.tol


def test_demo_shows_every_command_with_its_result(ooc_fw, tmp_path):
    outcome = ooc_fw("demo", tmp_path / "new").done()
    for command in DEMO.strip().splitlines():
        assert f"$ ooc-fw {command}\n" in outcome.out
    words = outcome.out.split()
    assert float(words[words.index("accuracy") + 1]) > 0.8
    assert (tmp_path / "new" / "predictions.txt").exists()


def test_demo_stops_at_the_first_failure(ooc_fw, tmp_path, monkeypatch):
    monkeypatch.setattr("ooc_fw.cli.demo.DEMO", "info none.h5\ninfo a1a.xz")
    outcome = ooc_fw("demo", tmp_path)
    assert outcome.status == 2
    assert "a1a.xz" not in outcome.out


@pytest.mark.process
def test_closed_pipe_is_quiet(model_file, data_file):
    reading, writing = os.pipe()
    os.close(reading)
    command = [*PROGRAM, "predict", model_file, data_file]
    program = subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    _, err = program.communicate()
    assert (program.returncode, err) == (141, "")  # as after SIGPIPE


PROCESS = """
import atexit, os, sys
from ooc_fw.cli import program

def send(*_):
    os.kill(os.getpid(), {number})

class Finder:
    def find_spec(name, *_):
        if name == "ooc_fw.cli.main" and {at!r} == "loading":
            send()

def main():
    atexit.register(send) if {at!r} == "ending" else None
    return 0

sys.meta_path.insert(0, Finder)
atexit.register(send) if {at!r} == "ended" else None
if {at!r} == "ending":
    import ooc_fw.cli.main
    ooc_fw.cli.main.main = main
sys.argv = ["ooc-fw", "--version"]
sys.exit(program())
"""


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("at", ["loading", "ending", "ended"])
def test_signals_around_a_command(number, at):
    """No traceback; when the command is over, its status stays."""
    code = PROCESS.format(number=int(number), at=at)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    left = 128 + number, "ooc-fw: interrupted\n"
    assert (run.returncode, run.stderr) == (left if at == "loading" else (0, ""))


@pytest.mark.process
@pytest.mark.parametrize("closing", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_standard_streams_that_are_closed(model_file, data_file, closing):
    command = ["sh", "-c", f'exec "$@" {closing}', "sh", *PROGRAM, "predict", model_file, data_file]
    program = subprocess.run(command, capture_output=True, text=True)
    assert (program.returncode, program.stderr) == (0, "")
    assert bool(program.stdout) == (closing == "2>&-")


ORDERS = "\x1b]0;title\x07\x1b[2J", "\x9b31m\u202e\nfake  1"
"""What a terminal obeys, and what would pass for another line or text."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Files with orders to a terminal in labels, names and text."""
    folder = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)).astype(np.float32)
    labels = [f"label{ORDERS[int(x > 0)]}" for x in X[:, 0]]
    with h5py.File(folder / "d.h5", "w") as file:
        file["X"], file["y"] = X, labels
        file[f"other{ORDERS[0]}"] = np.zeros(3)
        file.attrs[f"note{ORDERS[1]}"] = ORDERS[0]
    with (folder / "d.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([f"a{ORDERS[0]}", f"b{ORDERS[1]}", "y"])
        writer.writerows(zip(*X.T.tolist(), labels, strict=True))
    (folder / "d.txt").write_text(f"1 1:2\n1 {ORDERS[0]}:3\n")
    (folder / "d.bin").write_bytes("".join(ORDERS).encode() * 9 + b"\xff\x00")
    return folder


def test_files_give_no_orders_to_the_terminal(ooc_fw, hostile, monkeypatch):
    monkeypatch.chdir(hostile)
    for command in (
        "info d.h5",
        "info d.csv --label y",
        "info d.bin",
        "convert d.txt x.h5",
        "convert d.bin x.h5",
        "convert d.csv c.h5 --label y",
        "info c.h5",
        "train d.h5 --dry-run",
        "train d.h5 -o m.h5 --verbose",
        "train c.h5 -o n.h5",
        "train d.h5 -o x.h5 --class-weight z=1",
        "train d.h5 -o x.h5 --task regression",
        "tune d.h5 --C 1",
        "info m.h5",
        "evaluate m.h5 d.h5",
        "importance n.h5 c.h5",
        "evaluate n.h5 d.csv --label y",
        "evaluate n.h5 d.txt",
        "predict n.h5 d.bin -o x.csv",
        "certify m.h5 d.h5",
        "verify c.h5",
        "split d.h5 x.h5 z.h5",
    ):
        outcome = ooc_fw(*command.split())
        text = outcome.out + outcome.err
        assert all(c.isprintable() or c == "\n" for c in text), (command, text)
        assert "\nfake" not in text, command


@pytest.mark.process
def test_predictions_are_escaped_on_a_terminal_only(ooc_fw, hostile, monkeypatch):
    monkeypatch.chdir(hostile)
    name = f"a{ORDERS[0]}"
    with h5py.File("d.h5") as data, h5py.File("w.h5", "w") as file:
        np.save("X.npy", data["X"][...])
        file["X"], file["y"] = data["X"][...], [name if x > 0 else "b" for x in data["X"][:, 0]]
    for data in ("w", "d"):
        ooc_fw("train", f"{data}.h5", "-o", f"{data}.model.h5", "--quiet").done()
    assert set(ooc_fw("predict", "w.model.h5", "X.npy").out.splitlines()) == {name, "b"}
    ours, theirs = pty.openpty()
    subprocess.run([*PROGRAM, "predict", "w.model.h5", "X.npy"], stdout=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert set(shown.splitlines()) == {name.encode("unicode_escape").decode(), "b"}
    ooc_fw("predict", "d.model.h5", "X.npy").assert_refused("line breaks", "give -o FILE.csv")


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "modules"),
    [
        (["train", "{data}", "-o", "{model}", "--quiet"], {"sklearn", "dask", "distributed"}),
        (["plot", "--help"], {"matplotlib", "numpy"}),
    ],
)
def test_modules_that_are_not_loaded(data_file, tmp_path, arguments, modules):
    names = {"data": data_file, "model": tmp_path / "m.h5"}
    arguments = [argument.format(**names) for argument in arguments]
    code = f"import sys; from ooc_fw.cli.main import main; main({arguments})\n"
    code += f"sys.exit(any(name.partition('.')[0] in {modules} for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.process
def test_help_and_results_whatever_python_and_the_terminal_do(tmp_path):
    (tmp_path / "t.csv").write_text("\xe9,\u4e00,y\n" + "1,2,0\n3,4,1\n" * 9, encoding="utf-8")
    plain = os.environ | {"PYTHONIOENCODING": "ascii:strict"}
    words = [*PROGRAM, "info", str(tmp_path / "t.csv")]
    shown = subprocess.run(words, capture_output=True, check=True, env=plain).stdout
    assert rb"\xe9" in shown
    assert rb"\u4e00" in shown
    bare = os.environ | {"PYTHONOPTIMIZE": "2"}
    shown = subprocess.run([*PROGRAM, "train", "--help"], capture_output=True, check=True, env=bare)
    assert b"--checkpoint-every" in shown.stdout


@pytest.mark.process
def test_a_closed_standard_input_is_empty(tmp_path):
    command = f"exec {shlex.join([*PROGRAM, 'convert', '-', 'out.h5'])} <&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "standard input holds no rows" in done.stderr
