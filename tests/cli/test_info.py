import shlex
import tracemalloc
from dataclasses import replace
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
from pyarrow import csv
from scipy.sparse import csr_array

from ooc_fw import load_model, open_dataset
from tests.conversion.converted import write_table


@pytest.fixture
def describe(ooc_fw):
    """What is said of a file, as a dictionary."""
    return lambda *arguments: ooc_fw("info", *arguments, "--json").json()


def test_a_data_file(ooc_fw, here, describe, table):
    result = describe("d.h5")
    with h5py.File("d.h5") as file:
        X = file["X"][...].astype(float)
    sigma2 = 2 * ((X**2).sum(axis=1).mean() - (X.mean(axis=0) ** 2).sum())
    counts = {"-7": int((table.y == -7).sum()), "3": int((table.y == 3).sum())}
    for name, value in {"sigma2": sigma2, "gamma_auto": 1 / (2 * sigma2)}.items():
        assert result.pop(name) == pytest.approx(value, rel=1e-6), name
    assert result == {
        **{"kind": "data", "n_rows": 200, "n_features": 4, "storage": "dense", "classes": counts},
        **{"scaling": "minmax", "log1p": False, "normalize": False},
        **{"shuffled": True, "columns": None},
        **{"bad_rows": 0, "holds": None, "advice": [], "next": ["ooc-fw train d.h5"]},
    }
    assert f"classes -7 ({counts['-7']}), 3 ({counts['3']}) " in ooc_fw("info", "d.h5").words


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("m.h5", {"model_kind": "exact", "gap_scope": "all", "C": 5, "scaling": "minmax"}),
        ("marks.h5", {"model_kind": "landmarks", "gap_scope": "span", "n_support": 20}),
        ("numbers.h5", {"task": "regression", "classes": []}),
        ("novel.h5", {"task": "novelty", "classes": ["-1", "1"], "C": 30}),
        ("weighted.h5", {"weights": "by class or row", "threshold": None}),
        ("strict.h5", {"weights": None, "threshold": 0.5}),
        ("streamed.h5", {"status": "streamed", "gap_scope": "chunk", "certified_gap": None}),
        ("sampled.h5", {"status": "sampled", "gap_scope": None, "certified_gap": None}),
    ],
)
def test_a_model(ooc_fw, here, describe, name, expected):
    if name == "streamed.h5":
        ooc_fw("train", "d.txt", "--stream", "-o", name).done()
    elif name == "strict.h5":
        replace(load_model("m.h5"), threshold=0.5).save(name)
    elif name == "sampled.h5":
        ooc_fw("train", "d.h5", "--lmo", "sampled", "--no-certify", "-o", name).done()
    result, model = describe(name), load_model(name)
    assert expected.items() <= result.items()
    assert result["n_support"] == model.size
    assert result["certified_gap"] == model.certified_gap
    assert result["objective_gap"] == model.objective_gap
    shown = "(within the span of the 20 landmarks)" in ooc_fw("info", name).done().words
    assert shown == (name == "marks.h5")


def test_text(here, describe):
    result = describe("d.txt")
    assert (result["kind"], result["n_rows"], result["n_features"]) == ("text", 200, 4)
    assert sum(result["classes"].values()) == 200
    assert describe("zero.txt", "--zero-based")["n_features"] == 1
    Path("long.txt").write_text("1 1:2\n-1 2:1\n" * 400_000)
    result = describe("long.txt")
    assert result["n_rows"] is None
    assert 0 < sum(result["classes"].values()) < 800_000


def test_wide_rows_take_memory_for_the_columns_they_have(describe, tmp_path):
    path = tmp_path / "wide.txt"
    path.write_text("1 3:1 20:2\n-1 3:2\n1 7:1\n")
    describe(path)  # compiles what is needed
    path.write_text("1 3:1 20000000:2\n-1 3:2\n1 7:1\n")
    tracemalloc.start()
    result = describe(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result["n_features"] == 20_000_000
    assert peak < 20e6


# -- tables and advice -----------------------------------------------------------------------------


def test_a_table(ooc_fw, describe, tmp_path):
    lines = [f"n{i},{i},{7 if i != 5 else ''},{'red' if i % 2 else 'blue'},0" for i in range(60)]
    path = tmp_path / "my table.csv"
    path.write_text("\n".join(["name,size,same,colour,y", *lines, ""]))
    result = describe(path, "--label", "y")
    assert (result["kind"], result["format"], result["n_columns"]) == ("table", "csv", 5)
    assert result["columns"]["name"] == {"holds": "words", "missing": 0, "different": 60}
    assert result["columns"]["size"] == {"holds": "numbers", "missing": 0, "different": 60}
    assert result["columns"]["same"]["missing"] == 1
    assert result["next"] == [
        f"ooc-fw convert '{path}' 'my table.h5' --label y --one-hot colour --drop name "
        "--impute mean --scale standard"
    ]
    words = ooc_fw("info", path).words
    assert "colour holds words, missing 0, different 2 " in words
    assert "name one with --label" in words
    path.write_text("0,red,0\n1,red,0\n")
    result = describe(path, "--no-header")
    assert list(result["columns"]) == ["0", "1", "2"]
    # Without its name, the column of labels might become features.
    assert result["next"] == [f"ooc-fw info '{path}' --no-header --label COLUMN"]


@pytest.fixture
def advised(describe, tmp_path):
    """What is said of rows, whose labels are a column."""

    def describe_rows(X, y=None, storage=np.asarray):
        obs = {} if y is None else {"y": y}
        rows = storage(np.asarray(X, dtype=np.float32))
        anndata.AnnData(rows, obs=obs).write_h5ad(tmp_path / "X.h5ad")
        return describe(tmp_path / "X.h5ad", *([] if y is None else ["--label", "y"]))

    return describe_rows


@pytest.mark.parametrize("storage", [np.asarray, csr_array])
def test_what_would_spoil_a_model_is_told(ooc_fw, advised, storage):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 6)) * (rng.random((500, 6)) < 0.3)
    assert "there are no labels" in "\n".join(advised(X)["advice"])
    X[7, 1] = X[8, 2] = X[250, 0] = np.inf
    found = advised(X, np.arange(500), storage)
    assert (found["bad_rows"], found["next"]) == (3, [])
    not_finite, amounts = found["advice"]
    assert "3 of the rows that were read hold" in not_finite
    assert "amounts need --task regression" in amounts
    few = advised(X, np.arange(500) % 3, storage)
    assert few["classes"] == {"0": 167, "1": 167, "2": 166}


# -- the next command runs as it is ----------------------------------------------------------------


@pytest.fixture
def follow(ooc_fw, describe, tmp_path, monkeypatch):
    """Run what is printed until a model is trained; returns the name of its data."""
    monkeypatch.chdir(tmp_path)

    def follow_advice(*data):
        for _ in range(3):
            result = describe(*data)
            assert len(result["advice"]) <= 5
            (command,) = result["next"]
            words = shlex.split(command)
            ooc_fw(*words[1:], *["--quiet"] * (words[1] == "train")).done()
            if words[1] == "train":
                return words[2]
            data = (words[3],)
        raise AssertionError(f"no training follows from {data}")

    return follow_advice


def tables():
    """Tables of what people have: column -> its cells."""
    rng = np.random.default_rng(0)
    n = 300
    y = np.arange(n) % 2
    holed = [f"{value:.3f}" if k % 7 else "" for k, value in enumerate(rng.normal(size=n))]
    days = [f"2024-{k % 12 + 1:02}-{k % 28 + 1:02}" for k in range(n)]
    words = [f"w{k % 25}" for k in range(n)]
    return {
        "dates": {"day": days, "x": holed, "y": y},
        "holes": {"x": holed, "same": ["7" if k % 5 else "" for k in range(n)], "y": y},
        "empty column": {"x": holed, "none": [""] * n, "y": y},
        "decimal commas": {"price": ["1,5"] * n, "x": holed, "y": y},
        "missing labels": {"x": holed, "y": ["" if k % 9 == 0 else k % 2 for k in range(n)]},
        "many words": {"a": words, "b": words, "c": words[::-1], "x": np.arange(n) * 99, "y": y},
        "names": {"who": [f"n{k}" for k in range(n)], "a, b": words, "x": holed, "y": y},
    }


@pytest.mark.parametrize("name", tables())
@pytest.mark.parametrize("kind", ["csv", pytest.param("parquet", marks=pytest.mark.grid)])
def test_commands_for_tables(describe, follow, name, kind):
    path = write_table(Path("t.csv"), tables()[name])
    if kind == "parquet":
        path = write_table(Path("t.parquet"), csv.read_csv(path))
    follow(path, "--label", "y")
    if name == "many words":  # mostly zeros, which would take far more memory once centred
        assert describe("t.h5")["storage"] == "csr"


@pytest.mark.parametrize("name", ["sparse", "raw", "times"])
def test_commands_for_arrays(ooc_fw, describe, follow, name):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 12))
    rare = (rng.random((400, 40)) < 0.02) * 1.0
    rows = {
        "sparse": csr_array(np.c_[rare, 300 * rare[:, :3]]),
        "raw": np.c_[X * np.tile([1, 1000], 6), rare],
        "times": np.c_[X + 1.7e9, np.full(400, 0.1)],
    }
    y = np.where(np.arange(400) % 2, "a", "b")
    anndata.AnnData(rows[name], obs={"kind": y}).write_h5ad("X.h5ad")
    data = follow("X.h5ad", "--label", "kind")
    (command,) = describe(data.replace(".h5", ".model.h5"))["next"]
    ooc_fw(*shlex.split(command.replace("DATA", data))[1:]).done()


@pytest.mark.parametrize("name", ["X.npy", "r.csv", "r.parquet", "r.txt", "layers", "h5ad"])
def test_commands_for_regression_and_layers(ooc_fw, follow, name):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(250, 3)).astype(np.float32)
    y = 3 * X[:, 0] + 0.1 * rng.normal(size=250)
    np.save("X.npy", X)
    np.save("y.npy", y)
    frame = pd.DataFrame(X, columns=list("abc")).assign(y=y)
    frame.to_csv("r.csv", index=False)
    frame.to_parquet("r.parquet")
    lines = [f"{t:.5f} 1:{x[0]:.5f} 2:{x[1]:.5f} 3:{x[2]:.5f}" for t, x in zip(y, X, strict=True)]
    Path("r.txt").write_text("\n".join([*lines, ""]))
    cells = anndata.AnnData(np.zeros_like(X), obs={"amount": y, "kind": np.where(y > 0, "a", "b")})
    cells.layers["counts"] = X
    cells.write_h5ad("c.h5ad")
    label = {"X.npy": "--labels y.npy", "r.txt": ""}
    label |= {"layers": "--label kind", "h5ad": "--label amount"}
    words = label.get(name, "--label y").split()
    layer = ["--x-name", "layers/counts"] if name in ("layers", "h5ad") else []
    if layer:
        told = ooc_fw("info", "c.h5ad").done().out
        assert "holds       X, layers/counts, obs/amount, obs/kind\n" in told
        assert "--label NAME" in told
    data = follow("c.h5ad" if layer else name, *words, *layer)
    with open_dataset(data) as source:
        assert bool(source.targets) == (name != "layers")
        assert source.read(0, 250)[:, 0].std() > 0.5  # X itself has zeros only
    model = load_model(data.replace(".h5", ".model.h5"))
    assert model.task == ("classification" if name == "layers" else "regression")


@pytest.mark.parametrize("storage", [np.asarray, csr_array])
def test_no_scaling_is_advised_that_nobody_measured(advised, storage):
    """Scaling spoils pixels, embeddings and genes whose logarithms were taken."""
    X = np.random.default_rng(0).normal(size=(300, 6)) * [1, 1, 1, 1000, 1000, 1000]
    found = advised(X, np.where(X[:, 0] > 0, "a", "b"), storage)
    assert found["advice"] == []
    assert "--scale" not in found["next"][0]


def test_classes_of_unequal_size_are_told(ooc_fw, advised, tmp_path, monkeypatch):
    """By info, train and evaluate, unless weights are given."""
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(420, 3))
    y = np.where(np.arange(420) < 20, "few", "many")
    said = "class many has 400 rows and class few 20: with --class-weight balanced"
    assert said in advised(X, y)["advice"][0]
    ooc_fw("convert", "X.h5ad", "d.h5", "--label", "y").done()
    assert said in ooc_fw("train", "d.h5", "-o", "m.h5").err
    assert said in ooc_fw("evaluate", "m.h5", "d.h5").err
    balanced = ooc_fw("train", "d.h5", "-o", "m.h5", "--class-weight", "balanced").done().err
    assert "--class-weight" not in balanced + ooc_fw("evaluate", "m.h5", "d.h5").done().err
    assert "--class-weight" not in " ".join(advised(X[1:], y[1:])["advice"][1:])
