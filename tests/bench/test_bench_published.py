"""Published tables are those of the committed records."""

from bench import published


def test_texts_have_the_figures_of_the_records():
    assert published.main([]) == 0


def test_another_record_changes_the_text(monkeypatch, tmp_path):
    monkeypatch.setattr(published, "RESULTS", tmp_path)
    (tmp_path / "noisy.jsonl").write_text('{"label": "one", "solver": "a", "accuracy": 0.5}\n')
    text = published.written("before\n<!-- table: noisy -->\nold\n<!-- end -->\nafter")
    assert "| one |  | 50.0 % |" in text
    assert "old" not in text
    assert text.startswith("before")
