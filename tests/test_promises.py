"""Everything that README and guides name exists, and a guide names everything public."""

import pkgutil
import re
import subprocess
import sys
import tomllib
from argparse import _SubParsersAction
from pathlib import Path

import pytest

import bench.run
import ooc_fw
from ooc_fw.cli.commands import build_parser
from ooc_fw.kernels.functions import KERNELS
from ooc_fw.solver.oracles import ORACLES
from ooc_fw.solver.steps import STEP_RULES

ROOT = Path(__file__).parents[1]
GUIDES = {path.stem: path.read_text() for path in sorted(ROOT.glob("ooc_fw/guides/*.md"))}
README = (ROOT / "README.md").read_text()
TEXTS = GUIDES | {"README": README}
ALL = "".join(GUIDES.values())
HISTORY = "changes"  # the one guide that names what is gone


def options_of(parser):
    return set(parser._option_string_actions)


(PARSERS,) = (
    action.choices for action in build_parser()._actions if isinstance(action, _SubParsersAction)
)
OPTIONS = set.union(*map(options_of, PARSERS.values()))
OTHERS = options_of(bench.run._parser()) | {
    "--version",
    "--long",
    "--fast",
}  # tests have the last two
PUBLIC = {
    "name": ooc_fw.__all__,
    "command": PARSERS,
    "option": {option for option in OPTIONS if option.startswith("--")},
    "step rule": STEP_RULES,
    "oracle": ORACLES,
    "kernel": KERNELS,
}


@pytest.mark.parametrize("kind", PUBLIC)
def test_everything_public_stands_in_a_guide(kind):
    missing = [word for word in PUBLIC[kind] if not re.search(rf"(?<![\w-]){word}(?![\w-])", ALL)]
    assert not missing


@pytest.mark.parametrize("name", sorted(TEXTS.keys() - {HISTORY}))
def test_names_in_texts_exist(name):
    for dotted in re.findall(r"\booc_fw(?:\.[a-z_]\w*)+", TEXTS[name]):
        assert pkgutil.resolve_name(dotted) is not None
    text = re.sub(r"`pip [^`]*`|^    pip .*$", "", TEXTS[name], flags=re.MULTILINE)
    for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", text):
        assert option in OPTIONS | OTHERS, option
    for path in re.findall(r"`((?:ooc_fw|tests|bench|tools)/[\w/.-]+)`", TEXTS[name]):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", TEXTS)
def test_topics_of_help_are_guides(name):
    for topic in re.findall(r"ooc-fw help ([a-z][\w-]*)", TEXTS[name]):
        assert topic in GUIDES, topic


@pytest.mark.process
def test_commands_for_tests_select_some():
    lines = re.findall(r"`pytest (tests/[^`]*)`", ALL)
    assert lines
    for line in lines:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *line.split()]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
        names = re.findall(r"^tests/\S+", listed, flags=re.MULTILINE)
        assert names
        assert all(line.split()[-1] in name for name in names), line


def test_address_is_one_placeholder():
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    (address,) = set(urls.values())
    assert address.startswith("https://repository.invalid/")
    assert f"git clone {address} " in README
