"""Published tables are those of the committed records."""

import re
from pathlib import Path

from bench import published

SHOWN = {"title": "one set", "n_rows": 1234, "n_features": 5, "n_classes": 2, "dataset": "one"}
OURS = {
    "spec": "ooc-fw:memory=1GiB",
    "status": "converged",
    "seconds": 12.34,
    "peak_rss_bytes": 3 << 29,
    "objective_gap": 7.89e-4,
    "n_support": 32,
    "accuracy": 0.98765,
}


def test_texts_have_the_figures_of_the_records():
    assert published.main([]) == 0
    text = "".join(map(Path.read_text, published.TEXTS))
    assert set(re.findall(r"^<!-- table: (\w+) -->$", text, re.MULTILINE)) <= {*published.TABLES}


def test_records_say_what_made_them_and_where():
    names = "table commit cpu threads dataset spec status".split()
    assert all(record[name] for record in published.published() for name in names)


def test_a_record_changes_the_text(monkeypatch, tmp_path):
    monkeypatch.setattr(published, "RESULTS", tmp_path)
    proof = {**SHOWN, **OURS, "table": "proof", "memory_limit": "1GiB", "rows_bytes": 5 << 30}
    published.put(tmp_path / "readme.jsonl", [proof])
    text = published.written("before\n<!-- table: proof -->\nold\n<!-- end -->\nafter")
    assert text.startswith("before\n<!-- table: proof -->\n| set |")
    assert text.endswith("<!-- end -->\nafter")
    row = (
        "| one set, 1,234 x 5 | 1 GiB | 1.5 GiB | 12.3 s | 32 | 7.9e-4 | 98.77 % |  |  |  | `one` |"
    )
    assert row in text
    assert "old" not in text


def test_a_row_has_the_records_of_several_solvers():
    late = {"table": "measured", "spec": "intelex-svc", "status": "timeout", "seconds": 150.2}
    records = [{**SHOWN, **OURS, "table": "measured"}, {**SHOWN, **late}]
    row = "| one set, 1,234 x 5 | 12.3 s | 1.5 GiB | 7.9e-4 | 98.77 % | > 150 s |  |  | `one` |"
    assert published.markdown("measured", records).splitlines()[2:] == [row]
    step = {"table": "methods", "method": "fw", "status": "converged", "n_support": 1080}
    steps = [step | {"spec": f"ooc-fw:tol={tol}", "iterations": 6286} for tol in ("1e-1", "1e-2")]
    row = "| `fw` | 6,286 | 6,286 | 1,080 |"
    assert published.markdown("methods", steps).splitlines()[2:] == [row]
