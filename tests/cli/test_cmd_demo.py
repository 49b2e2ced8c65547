from __future__ import annotations

from ooc_fw.cli.guide import DEMO


def test_demo_shows_every_command_with_its_result(ooc_fw, tmp_path):
    outcome = ooc_fw("demo", tmp_path / "new")
    assert outcome.status == 0
    for command in DEMO:
        assert f"$ ooc-fw {command}\n" in outcome.out
    accuracy = next(
        float(line.split()[1]) for line in outcome.out.splitlines() if line.startswith("accuracy")
    )
    assert accuracy > 0.8
    assert (tmp_path / "new" / "predictions.txt").exists()


def test_demo_stops_at_the_first_failure(ooc_fw, tmp_path, monkeypatch):
    monkeypatch.setattr("ooc_fw.cli.guide.DEMO", ("info none.h5", "info a1a.xz"))
    outcome = ooc_fw("demo", tmp_path)
    assert outcome.status == 2
    assert "a1a.xz" not in outcome.out
