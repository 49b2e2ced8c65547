import re
import xml.etree.ElementTree as ElementTree

import pytest
from run_events import START

from ooc_fw.report.runlog import page

pytest.importorskip("matplotlib")


def parse(*runs):
    """Text of a page, and its elements: closed in order, without names of entities."""
    text = page(runs)
    document = re.sub(r"<(meta [^>]*)>", r"<\1/>", text.removeprefix("<!DOCTYPE html>"))
    return text, ElementTree.fromstring(document)


def cells(root, name):
    """Cells of the row of a table that begins with `name`."""
    (row,) = [row for row in root.iter("tr") if row[0].text == name]
    return [cell.text for cell in row[1:]]


def test_a_page_compares_runs_and_needs_nothing_else(make_run):
    text, root = parse(make_run("one", C=1.0), make_run("<b>&amp;", n=18, C=7.5, end=False))
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert (tags.count("svg"), tags.count("table")) == (1, 2)
    assert not {"script", "link", "img", "iframe", "object", "b"} & set(tags)
    assert not re.search(r'(href|src)="[^#]|@import', text)
    assert cells(root, "C") == ["1", "7.5"]
    assert text.count('<tr class="differs">') == 1
    assert cells(root, "memory limit") == ["400 MiB"] * 2
    assert cells(root, "certified gap") == ["0.0005", None]
    assert cells(root, "status") == ["converged", "no end in the log"]
    assert "The run was killed, or is still under way: 17 s so far" in text


def test_a_run_without_progress_has_tables_only(read):
    text, _ = parse(read(START))
    assert "<svg" not in text
    assert "nothing to draw" in text


def test_results_of_any_type_are_shown_unless_they_repeat_an_option(read):
    start = {"event": "start", "options": {"method": "auto", "C": 2.0}}
    end = {"event": "end", "pairs": [{"gap": 0.5, "n": 1234}, None], "ok": True, "bytes_read": 2048}
    _, root = parse(read(start, end | {"method": "mfw", "C": 2.0}))
    options, results = ([[cell.text for cell in row] for row in t[1:]] for t in root.iter("table"))
    assert options == [["method", "auto"], ["C", "2"]]
    assert results == [
        ["pairs", "gap (0.5), n (1234), unknown"],
        ["ok", "True"],
        ["bytes read", "2 KiB"],
        ["method", "mfw"],
    ]
