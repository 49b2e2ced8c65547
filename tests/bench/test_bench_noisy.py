"""The table and the figures of made-up records; runs that have a record are not repeated."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from bench import noisy
from bench.process import ROOT
from bench.solvers import Problem, parse_spec

MACHINE = {
    "session": "now",
    "commit": "0123456789abcdef",
    "uncommitted_changes": False,
    "python": "3.13",
    "cpu": "a processor",
    "memory_bytes": 1 << 34,
    "threads": 2,
    "n_rows": 1000,
    "n_features": 7,
    "C": 10.0,
    "gamma": 0.5,
}


def record(dataset, spec, seed, **figures):
    solver, parameters = parse_spec(spec)
    return {
        **MACHINE,
        "dataset": dataset,
        "solver": solver.name,
        "spec": spec,
        "seed": seed,
        "parameters": json.dumps(parameters),
        "status": "fitted",
        **figures,
    }


def made_up():
    """Three seeds of ours at two sizes; one that failed; what knows of no vectors."""
    records = []
    for seed, extra in enumerate((0.0, 0.004, 0.001)):
        for n in (1000, 400):
            records.append(
                record(
                    *("fields", f"ooc-fw:landmarks={n}", seed),
                    accuracy=0.8 + n / 1e4 + extra,
                    balanced_accuracy=0.7,
                    roc_auc=0.9,
                    seconds=n / 100 + seed,
                    peak_rss_bytes=3e8,
                    n_support=n,
                    certified_gap=1e-3 * (1 + seed),
                )
            )
        for spec in ("xgboost:trees=500", "nystroem:components=400,linear=sgd", "sgd"):
            records.append(
                record("fields", spec, seed, accuracy=0.82, seconds=2.0, peak_rss_bytes=1e9)
            )
    records.append(record("fields", "nystroem:components=1000", 0, status="failed", error="no"))
    records.append(record("webs", "sgd", 0, accuracy=0.5, seconds=0.1, peak_rss_bytes=1e8))
    return records


def test_table_of_made_up_records():
    text = noisy.markdown(made_up())
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    assert len({len(row) for row in rows}) == 1
    head, table = rows[0], [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]
    assert [(row["set"], row["method"], row["vectors"]) for row in table] == [
        ("fields", "ooc-fw, landmarks", "400"),
        ("fields", "ooc-fw, landmarks", "1000"),
        ("fields", "Nystroem + LinearSVC", "1000"),
        ("fields", "Nystroem + SGD", "400"),
        ("fields", "linear SGD", ""),
        ("fields", "XGBoost, 500 trees", ""),
        ("webs", "linear SGD", ""),
    ]
    assert head[-1] == "gap in the span"
    assert list(table[1].values())[3:] == [
        "90.10 (90.00 to 90.40)",
        "70.00",
        "0.9000",
        "11.0 (10.0 to 12.0)",
        "300",
        "3.0e-03",  # the largest
    ]
    assert table[2]["test accuracy %"] == "failed"
    assert table[4]["gap in the span"] == table[4]["ROC AUC"] == ""
    assert "3 seeds" in text
    assert "fields: 1000 rows, 7 features, C 10, gamma 0.5" in text


def test_figures_of_made_up_records(tmp_path):
    figure = pytest.importorskip("matplotlib.figure")
    drawn, save = [], figure.Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            figure.Figure, "savefig", lambda own, *a, **k: (drawn.append(own), save(own, *a, **k))
        )
        paths = noisy.draw(made_up(), tmp_path)
    assert [path.name for path in paths] == ["accuracy-time.png", "accuracy-vectors.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    in_time, by_vectors = (own.axes[0] for own in drawn)
    assert [ax.get_title() for ax in drawn[0].axes] == ["fields", "webs"]
    ours = in_time.containers[0].lines[0]
    assert list(ours.get_xdata()) == [5.0, 11.0]
    assert list(ours.get_ydata()) == pytest.approx([84.1, 90.1])
    assert list(by_vectors.containers[0].lines[0].get_xdata()) == [400, 1000]
    level = [line for line in by_vectors.lines if line.get_linestyle() == "--"]
    assert [line.get_label() for line in level] == ["linear SGD", "XGBoost"]


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """The specs, set and seed of the runs of a command, which are not really made."""
    made = []

    def measure(prepared, chosen, common, **how):
        made.append((prepared, chosen[0], common["seed"]))
        failed = {"status": "failed"} if chosen[0] == "sgd" else {}
        figures = {"accuracy": 0.8, "seconds": 1.0, "peak_rss_bytes": 1e8}
        return record(prepared, chosen[0], common["seed"]) | (failed or figures)

    monkeypatch.setattr(noisy, "measure", measure)
    monkeypatch.setattr(noisy, "prepare", lambda dataset, *folders: dataset.name)
    monkeypatch.setattr(noisy, "_limit_memory", lambda most: None)
    monkeypatch.setattr(noisy, "limit_cpus", lambda threads: 1)

    def run(*arguments):
        made.clear()
        assert noisy.main([*arguments, "--sets", "a9a", "--output", str(tmp_path)]) == 0
        return list(made)

    return run


def test_runs_that_have_a_record_are_not_repeated(runs, tmp_path):
    first = runs("--quick")
    ours = ("a9a-1in8", "ooc-fw:landmarks=100", 0)
    assert first.count(ours) == 2  # one of them to warm up
    assert len(set(first)) == len(first) - 1
    assert set(noisy.specs(noisy.QUICK_SIZES)) >= {spec for _, spec, _ in first}
    assert runs("--quick") == []
    assert runs("--quick", "--retry") == [("a9a-1in8", "sgd", 0)]
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    kept = [line for line in lines if "landmarks=400" not in line]
    (tmp_path / "records.jsonl").write_text("".join(f"{line}\n" for line in kept))
    assert [own[1] for own in runs("--quick")] == ["ooc-fw:landmarks=400"] * 2
    assert {own[2] for own in runs("--seeds", "2")} == {0, 1}
    assert (tmp_path / "noisy.md").read_text().startswith("# Noisy data")


def test_an_interrupt_leaves_a_report(runs, monkeypatch, capsys, tmp_path):
    def interrupt(*arguments, **how):
        raise KeyboardInterrupt

    runs("--quick")
    with monkeypatch.context() as patch:
        patch.setattr(noisy, "measure", interrupt)
        runs("--quick", "--retry")
    assert "ended" in capsys.readouterr().err
    assert "LIBSVM" in (tmp_path / "noisy.md").read_text()


def test_random_rows_of_as_much_support_as_wanted():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 2))
    y = (X[:, 0] + rng.normal(size=3000) > 0).astype(int)
    peer, parameters = parse_spec("subsample:support=200")
    estimator = peer.build(Problem("", "", C=1.0, gamma=0.5), parameters)
    estimator.prepare(X, y)
    assert estimator.fit(X, y).n_support_.sum() == pytest.approx(200, rel=0.15)
    assert estimator.decision_function(X).shape == (3000,)


def test_mistakes(capsys, tmp_path):
    assert noisy.main(["--sets", "roses", "--output", str(tmp_path)]) == 2
    assert "'roses'" in capsys.readouterr().err
    assert noisy.main(["--report-only", "--output", str(tmp_path)]) == 1
    assert "has no records" in capsys.readouterr().err


@pytest.mark.process
def test_memory_of_children_is_limited():
    """In a process of its own, since the limit cannot be taken back."""
    code = (
        "import resource; from bench import noisy; noisy._limit_memory(1 << 40); "
        "print(resource.getrlimit(resource.RLIMIT_DATA)[0])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) == 1 << 40
