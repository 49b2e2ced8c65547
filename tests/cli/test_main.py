from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import time
import types
import warnings
from pathlib import Path

import pytest

from ooc_fw.cli import main as cli
from ooc_fw.system.errors import InputError


@pytest.fixture
def failing(monkeypatch):
    """Give ``ooc-fw demo`` something else to do."""

    def install(action):
        def add_parser(subparsers):
            subparsers.add_parser("demo")

        def run(args):
            return action()

        command = types.SimpleNamespace(add_parser=add_parser, run=run)
        monkeypatch.setitem(cli.COMMANDS, "demo", command)

    return install


def raiser(error):
    def action(*_, **__):
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (InputError("data.h5 is empty; give rows"), 2, "data.h5 is empty; give rows"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(errno.ENOSPC, "No space left", "m.h5"), 1, "m.h5: No space left"),
        (OSError("disk on fire"), 1, "disk on fire"),
        (MemoryError("8 GiB"), 1, "out of memory: 8 GiB"),
    ],
)
def test_failure_is_one_sentence_and_a_status(failing, ooc_fw, error, status, message):
    failing(raiser(error))
    assert ooc_fw("demo") == (status, "", f"ooc-fw: {message}\n")


def test_error_of_the_program_itself_keeps_its_traceback(failing, ooc_fw):
    failing(raiser(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        ooc_fw("demo")


def test_status_of_the_command_is_returned(failing, ooc_fw):
    failing(lambda: 1)
    assert ooc_fw("demo").status == 1


def test_warnings_are_one_line_each(failing, ooc_fw):
    def action():
        warnings.warn("not shuffled", UserWarning, stacklevel=1)
        logging.getLogger("ooc_fw.model.record").warning("scaled %s", "oddly")
        return 0

    failing(action)
    assert ooc_fw("demo").err == ("ooc-fw: warning: not shuffled\nooc-fw: warning: scaled oddly\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: COMMAND; see ooc-fw --help"),
        (("fit",), "invalid choice: 'fit'"),
        (("train",), "required: DATA; see ooc-fw train --help"),
        (("train", "d.h5", "--tol", "small"), "argument --tol: must be a number above 0"),
        (("train", "d.h5", "--gamma", "wide"), "argument --gamma: must be a number above 0"),
        (("train", "d.h5", "--speed"), "unrecognized arguments: --speed; see ooc-fw"),
    ],
)
def test_usage_error_is_one_sentence(ooc_fw, arguments, message):
    outcome = ooc_fw(*arguments)
    assert outcome.status == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("command", [None, *cli.COMMANDS])
def test_help(ooc_fw, command):
    outcome = ooc_fw(*([command] if command else []), "--help")
    assert outcome.status == 0
    assert outcome.out.startswith("usage: ooc-fw")
    assert outcome.err == ""


def run_program(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "ooc_fw.cli.main", *arguments],
        capture_output=True,
        text=True,
        **options,
    )


def test_closed_pipe_is_quiet(model_file, data_file):
    reading, writing = os.pipe()
    os.close(reading)
    program = subprocess.Popen(
        [sys.executable, "-m", "ooc_fw.cli.main", "predict", model_file, data_file],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    _, err = program.communicate()
    assert (program.returncode, err) == (141, "")  # as after SIGPIPE


@pytest.mark.parametrize("arguments", [["predict", "{model}", "{data}"], ["--help"]])
def test_standard_output_that_cannot_be_written(model_file, data_file, arguments):
    """A status and a sentence, no traceback; so for messages that nobody can hear."""
    names = {"model": model_file, "data": data_file}
    command = ["-m", "ooc_fw.cli.main", *(argument.format(**names) for argument in arguments)]
    for closing in (">&-", "2>&-", ">&- 2>&- <&-"):
        program = subprocess.run(
            ["sh", "-c", f'exec "$@" {closing}', "sh", sys.executable, *command],
            capture_output=True,
            text=True,
        )
        silent = closing.endswith(("2>&-", "<&-"))
        assert program.returncode == (0 if closing == "2>&-" else 1)
        said = "" if silent else "ooc-fw: standard output: Bad file descriptor\n"
        assert program.stderr == said
        assert bool(program.stdout) == (closing == "2>&-")


@pytest.mark.parametrize(
    "moment",
    ["ooc_fw.data.labels.encode_labels", "ooc_fw.training.one_versus_one.solve_problem"],
)
def test_interrupt_shows_no_traceback(ooc_fw, data_file, tmp_path, monkeypatch, moment):
    monkeypatch.setattr(moment, raiser(KeyboardInterrupt()))
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", "--quiet")
    assert outcome == (130, "", "ooc-fw: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_help_starts_at_once():
    # The bound is loose for loaded machines; what makes it hold is that no numbers are loaded,
    # see tests/test_init.py.
    started = time.perf_counter()
    program = run_program("--help")
    assert program.returncode == 0
    assert time.perf_counter() - started < 2


def test_training_needs_neither_scikit_learn_nor_dask(data_file, tmp_path):
    code = (
        "import sys; from ooc_fw.cli.main import main; "
        f"main(['train', {str(data_file)!r}, '-o', {str(tmp_path / 'm.h5')!r}, '--quiet']); "
        "print({'sklearn', 'dask'} & {name.partition('.')[0] for name in sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "set()"


def numeric_options():
    """Every option of every command that takes a number, with the command's other arguments."""
    for action in cli.build_parser()._subparsers._group_actions:
        for command, parser in action.choices.items():
            needed = [
                "x" for option in parser._actions if not option.option_strings and option.required
            ]
            for option in parser._actions:
                if option.type is not None and option.option_strings and option.type is not Path:
                    yield command, needed, option.option_strings[-1]


@pytest.mark.parametrize("value", ["-1", "nan", "-inf", "1e999", "9" * 400, "", "x", "0^-1"])
def test_absurd_numbers_are_one_sentence(ooc_fw, value):
    checked = 0
    for command, needed, option in numeric_options():
        outcome = ooc_fw(command, f"{option}={value}", *needed)
        outcome.assert_refused(option)
        checked += 1
    assert checked > 20


def test_absurd_lists_of_values(ooc_fw):
    for values in ("2^1..2^999999999", "2^99999", "1,-1", "2^3..2^1", "2^0..2^3:0"):
        ooc_fw("tune", "x.h5", f"--Cs={values}").assert_refused("--Cs")
