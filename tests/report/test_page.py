from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from ooc_fw.report.page import page
from ooc_fw.report.runlog import read_runs
from ooc_fw.testing.logs import make_events

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


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Page of two runs, the second without an end, with a name that looks like markup."""
    folder = tmp_path_factory.mktemp("logs")
    end = {"event": "end", "status": "converged", "certified_gap": 5e-4}
    paths = []
    for name, C, n, last in (("one", 1.0, 40, [end]), ("<b>&amp;", 7.5, 35, [])):
        paths.append(folder / f"{name}.jsonl")
        events = [*make_events(n, C=C), *last]
        paths[-1].write_text("".join(json.dumps(event) + "\n" for event in events))
    return check(read_runs(paths))


def cells_after(found, name, n):
    place = found.cells.index(name)
    return found.cells[place + 1 : place + 1 + n]


def test_page_is_whole_and_alone(two):
    text, found = two
    assert found.tags.count("svg") == 4
    assert found.tags.count("table") == 2
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    assert len(found.ids) == len(set(found.ids))
    assert all(target.startswith("#") for target in found.targets)
    assert {target[1:] for target in found.targets} <= set(found.ids)
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(found.ids)
    assert "@import" not in text
    assert "DOCTYPE svg" not in text


def test_colours_follow_light_and_dark(two):
    style, _, body = two[0].partition("</style>")
    assert "prefers-color-scheme: dark" in style
    used = set(re.findall(r"var\((--[\w]+)\)", body))
    assert len(used) > 5
    for variable in used:
        assert style.count(f"{variable}: ") == 2
    assert set(re.findall(r"#[0-9a-f]{6}\b", body)) <= {"#ffffff"}  # of frames that are not seen


def test_tables_compare_options_and_results(two):
    text, found = two
    assert cells_after(found, "C", 2) == ["1", "7.5"]
    assert text.count('<tr class="differs">') == 1
    assert cells_after(found, "certified gap", 2) == ["0.0005", "none"]
    assert cells_after(found, "memory limit", 1) == ["400 MiB"]
    assert "degree" not in found.cells


def test_names_are_text_not_markup(two):
    text, found = two
    assert "<b>" not in text
    assert "b" not in found.tags


def test_a_run_without_an_end_says_so(two):
    text, found = two
    assert "The run was killed, or is still under way: 17 s so far" in text
    assert cells_after(found, "status", 2) == ["converged", "no end in the log"]
    assert "support vectors</th><td></td><td>102</td>" in text


def test_a_certificate_of_weights_that_are_no_more_is_not_shown(read, monkeypatch):
    monkeypatch.setattr("ooc_fw.report.page._svg", lambda *_: "")
    _, found = check(read(*make_events(n=30)))
    assert cells_after(found, "certified gap", 1) == ["none"]


@pytest.fixture
def read(tmp_path):
    """Read a log of these events."""

    def read_log(*events):
        path = tmp_path / "log"
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        return read_runs([path])

    return read_log


def test_a_run_without_progress_has_tables_only(read):
    text, found = check(read(*make_events(n=0)))
    assert "svg" not in found.tags
    assert "nothing to draw" in text


def test_results_that_are_not_known_here_are_shown_too(read):
    end = {"event": "end", "pairs": [{"gap": 0.5, "n": 1234}, None], "ok": True}
    _, found = check(read({"event": "start"}, end))
    assert cells_after(found, "pairs", 1) == ["gap 0.5, n 1,234; none"]
    assert cells_after(found, "ok", 1) == ["yes"]


def test_machines_have_a_table_with_the_worst_first(read):
    machines = [{"negative": k, "positive": k + 1, "certified_gap": 0.1 * k} for k in range(3)]
    _, found = check(read({"event": "start"}, {"event": "end", "machines": machines}))
    assert found.cells[-9:] == ["2", "3", "0.2", "1", "2", "0.1", "0", "1", "0"]
    assert "machines" not in found.cells
