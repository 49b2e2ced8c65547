"""Published tables are those of the committed records, and no text has other measured figures."""

import re
from pathlib import Path

import pytest

from bench import published
from bench.run import read_lines

MADE = r"<!-- table: \w+ -->.*?<!-- end -->"
SHOWN = r"```.*?```|^    .*?$|`[^`\n]*`"
FIGURE = r"\d[\d.,]* ?(?:m?s|seconds?|minutes?|hours?|[kMG]i?B|%|times|[mb]illion)(?!\w)"
NOT_MEASURED = {
    "README.md": ("10 % set)", "by more than 0.16 %.", "says 0.055 %"),
    "api.md": (
        "so far: 90, 90s, 30m, 2h",
        'such as "30m" and "1GiB"',
        "such as 1GiB",
        "10 minutes",
    ),
    "bench/README.md": ("within 1 GiB", "the 10 % set", "2.9 million different rows"),
    "commands.md": ("(default: 60s)", "so far: 90, 90s, 30m, 2h", "such as 1GiB"),
    "changes.md": (
        "a constant of 320 MiB",
        "within 250 MiB",
        "within 10 minutes (",
    ),
    "choose.md": (
        "take 2 N^2 bytes: 3.2 GB for 40,000, 20 GB for 100,000",
        "within 80 % of",
        "learns from: 30 % of the rows",
        "(default 10 minutes)",
    ),
    "classes.md": ("in RAM up to 256 MiB",),
    "developing.md": ("a test has 300 seconds",),
    "files.md": ("values of (64 KiB)", "is read 64 KiB or more"),
    "intrusion.md": ("4.9 million connections",),
    "gap.md": ("yet 2 % above the optimum",),
    "large.md": (
        "A run of 4.9 million rows",
        "the 10 % set",
        "2.3 GiB, dense",
        "| 1 GiB |",
        "| 920 MB |",
        "| 54 s |",
        "1GB is",
        "1GiB and 1G are",
    ),
    "methods.md": ("the best 2 % with", "smaller by more than 0.16 %."),
    "tutorial.md": ("than 0.15 %.", "an error of 2.5 % there", "figure is about 1 %"),
}
"""Limits, sizes of sets and shares, as they stand in the texts without what is code."""


def name(path):
    """Of a guide its file; of the others their place in the project."""
    return path.name if path.parent.name == "guides" else str(path.relative_to(published.ROOT))


def test_texts_have_the_figures_of_the_records():
    assert published.main([]) == 0
    text = "".join(map(Path.read_text, published.TEXTS))
    marked = re.findall(r"^<!-- table: (\w+) -->$", text, re.MULTILINE)
    kept = [path.stem for path in published.RESULTS.iterdir()]
    assert sorted(marked) == sorted(published.TABLES) == sorted(kept)


@pytest.mark.parametrize("table", published.TABLES)
def test_records_say_what_made_them_and_where(table):
    for record in read_lines(published.RESULTS / f"{table}.jsonl"):
        assert record["commit"]
        assert record["cpu"]


@pytest.mark.parametrize("path", published.TEXTS, ids=name)
def test_measured_figures_stand_in_tables_of_records(path):
    form = re.compile(f"{MADE}|{SHOWN}", re.DOTALL | re.MULTILINE)
    text = " ".join(form.sub("", path.read_text()).split())
    for phrase in NOT_MEASURED.get(name(path), ()):
        assert phrase in text
        text = text.replace(phrase, "")
    assert re.findall(FIGURE, text) == []


def test_another_record_changes_the_text(monkeypatch, tmp_path):
    monkeypatch.setattr(published, "RESULTS", tmp_path)
    (tmp_path / "noisy.jsonl").write_text('{"label": "one", "solver": "a", "accuracy": 0.5}\n')
    text = published.written("before\n<!-- table: noisy -->\nold\n<!-- end -->\nafter")
    assert "| one |  | 50.0 % |" in text
    assert "old" not in text
    assert text.startswith("before")
