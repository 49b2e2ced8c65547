"""The public names of the package, what importing them costs, and examples in docstrings."""

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import ooc_fw
from ooc_fw.cli.commands import COMMANDS

PACKAGE = Path(ooc_fw.__file__).parent
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text()
]


def imported_by(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after running `code`."""
    report = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    return set(run.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("name", ooc_fw.__all__)
def test_public_name_is_there_and_documented(name):
    assert getattr(ooc_fw, name).__doc__
    assert getattr(ooc_fw, name).__name__ == name
    assert name in dir(ooc_fw)


@pytest.mark.process
def test_no_module_hides_a_public_name():
    """An import sets a module as an attribute of its package."""
    code = "import ooc_fw.estimators, ooc_fw.training.tuning, ooc_fw.cli.train, ooc_fw"
    kinds = "{name: type(getattr(ooc_fw, name)).__name__ for name in ooc_fw.__all__}"
    check = f"assert 'module' not in {kinds}.values()"
    subprocess.run([sys.executable, "-c", f"{code}\n{check}"], check=True)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ooc_fw.nothing


@pytest.mark.process
def test_import_of_the_package_loads_no_numbers():
    assert not imported_by("import ooc_fw") & {"numpy", "h5py", "numba", "sklearn", "dask"}


def test_help_loads_no_numbers():
    arguments = [[*command.split(), "--help"] for command in ("", *COMMANDS)]
    code = f"from ooc_fw.cli.main import main; assert not any(map(main, {arguments}))"
    assert not imported_by(code) & {"numpy", "h5py", "numba", "sklearn", "dask"}


@pytest.mark.process
def test_commands_that_compute_nothing_load_no_compiled_code(data_file):
    for command in (["help"], ["verify", str(data_file), "--quiet"]):
        code = f"from ooc_fw.cli.main import main; main({command})"
        assert "numba" not in imported_by(code), command


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.attempted > 0
    assert outcome.failed == 0
