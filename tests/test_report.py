from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from ooc_fw import figures
from ooc_fw.report import page
from ooc_fw.runlog import read_runs
from tests.test_figures import make_run  # noqa: F401  (a fixture)

pytest.importorskip("matplotlib")

_VOID = {"meta", "br", "hr", "img", "link", "input"}


class Checker(HTMLParser):
    """Checks that tags are closed in order, and gathers what a page holds."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.ids, self.targets, self.cells = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "xlink:href", "src"):
                self.targets.append(value)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


def check(runs):
    text = page(runs)
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return text, checker


def test_page_is_whole_and_alone(make_run):  # noqa: F811
    text, found = check([make_run("one"), make_run("two", C=7.5)])
    assert found.tags.count("svg") == 4
    assert found.tags.count("table") == 2
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    assert len(found.ids) == len(set(found.ids))
    assert all(target.startswith("#") for target in found.targets)
    assert {target[1:] for target in found.targets} <= set(found.ids)
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(found.ids)
    assert "@import" not in text
    assert "DOCTYPE svg" not in text


def test_colours_follow_light_and_dark(make_run):  # noqa: F811
    text, _ = check([make_run()])
    style, _, body = text.partition("</style>")
    assert "prefers-color-scheme: dark" in style
    used = set(re.findall(r"var\((--[\w]+)\)", body))
    for variable in used:
        assert style.count(f"{variable}: ") == 2
    left = set(re.findall(r"#[0-9a-f]{6}\b", body))
    assert left <= {"#000000"}  # of empty frames only
    assert figures.RUN_COLORS[0] not in body


def test_tables_compare_options_and_results(make_run):  # noqa: F811
    text, found = check([make_run("one", C=1.0), make_run("two", C=7.5)])
    cells = found.cells
    assert cells[cells.index("C") : cells.index("C") + 3] == ["C", "1", "7.5"]
    assert text.count('<tr class="differs">') == 1
    place = cells.index("certified gap")
    assert cells[place : place + 3] == ["certified gap", "0.0005", "0.0005"]
    assert cells[cells.index("memory limit") + 1] == "400 MiB"
    assert "degree" not in cells


def test_names_are_text_not_markup(make_run):  # noqa: F811
    text, found = check([make_run("<b>&amp;"), make_run("two")])
    assert "<b>" not in text
    assert "b" not in found.tags


def test_a_run_without_an_end_says_so(make_run):  # noqa: F811
    text, found = check([make_run(end=False)])
    assert "The run was killed, or is still under way: 19.5 s so far" in text
    assert found.cells[found.cells.index("status") + 1] == "no end in the log"
    assert found.cells[found.cells.index("support vectors") + 1] == "117"


def test_a_run_without_progress_has_tables_only(make_run):  # noqa: F811
    text, found = check([make_run(n=0, end=False)])
    assert "svg" not in found.tags
    assert "nothing to draw" in text


def test_results_that_are_not_known_here_are_shown_too(tmp_path):
    path = tmp_path / "log"
    path.write_text(
        '{"event": "start"}\n{"event": "end", "pairs": [{"gap": 0.5, "n": 1234}, null], "ok": true}'
    )
    _, found = check(read_runs([path]))
    cells = found.cells
    assert cells[cells.index("pairs") + 1] == "gap 0.5, n 1,234; none"
    assert cells[cells.index("ok") + 1] == "yes"
