"""Everything that README and guides name exists, and a guide names everything public."""

import pkgutil
import re
import runpy
import shutil
import tomllib
from argparse import _SubParsersAction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
TEXT_FILES = "*.md", "*.py", "*.toml", "tools/**/*.*", "bench/**/*.py", "ooc_fw/**/*.*"
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


def test_commands_for_tests_select_some(monkeypatch):
    monkeypatch.chdir(ROOT)
    lines = re.findall(r"`pytest (tests/[^`]*)`", ALL)
    assert lines
    for line in lines:
        names = []
        seen = SimpleNamespace(
            pytest_collection_finish=lambda session, names=names: names.extend(
                item.nodeid for item in session.items
            )
        )
        pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *line.split()], [seen])
        assert names
        assert all(line.split()[-1] in name for name in names), line


PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_one_file_holds_the_address(tmp_path):
    """Links of README are whole in a release; no other file names the place of the project."""
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    package = runpy.run_path(str(ROOT / "tools" / "package.py"))
    package["main"](tmp_path)
    released = (tmp_path / "README.md").read_text()
    urls = PROJECT["urls"]
    address = urls["Homepage"]
    assert {*urls} == {"Homepage", "Documentation", "Changelog", "Issues", "Repository"}
    links = re.findall(r"\]\(([^)#]+)\)", released)
    assert links
    assert all(link.startswith(f"{address}/") for link in links)
    for link in [*urls.values(), *links]:
        path = re.sub("^/(blob|raw)/main/", "", link.removeprefix(address))
        assert path in ("", "/issues") or (ROOT / path).is_file(), link
    host = address.split("/")[2].encode()
    texts = [path for kind in TEXT_FILES for path in ROOT.glob(kind)]
    assert [path.name for path in texts if host in path.read_bytes()] == ["pyproject.toml"]


def test_citation_agrees_with_the_metadata():
    (author,) = PROJECT["authors"]
    (cited,) = re.findall(r"To cite: \*(.*?)\*", README)
    assert cited.startswith(f"{author['name']}: {PROJECT['name']}, ")
    assert re.fullmatch(r".*, (.*), 20\d\d\.", cited)[1] == ooc_fw.__version__
