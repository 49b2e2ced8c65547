import re
import shlex
import tracemalloc

import anndata
import h5py
import numpy as np
import pytest
from scipy.sparse import csr_array

from ooc_fw.cli import info
from ooc_fw.data.opening import open_source
from ooc_fw.model.record import load_model
from tests.support.files import write_dense


def describe(ooc_fw, *arguments):
    return ooc_fw("info", *arguments, "--json").json()


def test_data_file(ooc_fw, data_file, table):
    result = describe(ooc_fw, data_file)
    with h5py.File(data_file) as file:
        X = file["X"][...].astype(float)
    sigma2 = 2 * ((X**2).sum(axis=1).mean() - (X.mean(axis=0) ** 2).sum())
    counts = {"-7": int((table.y == -7).sum()), "3": int((table.y == 3).sum())}
    close = {"sigma2": sigma2, "gamma_auto": 1 / (2 * sigma2)}
    close |= {"density": np.count_nonzero(X) / X.size}
    for name, value in close.items():
        assert result.pop(name) == pytest.approx(value, rel=1e-6), name
    assert result == {
        **{"kind": "data", "n_rows": 200, "n_features": 4, "storage": "dense", "classes": counts},
        **{"scaling": "minmax", "log1p": False, "shuffled": True},
        **{"columns": None, "n_looked_at": 200},
        **{"bad_rows": 0, "advice": []},
        "next": [f"ooc-fw train {data_file}"],
    }
    lines = [" ".join(line.split()) for line in ooc_fw("info", data_file).out.splitlines()]
    assert lines[0] == "kind data"
    assert f"classes -7 ({counts['-7']}), 3 ({counts['3']})" in lines


def test_model_file(ooc_fw, model_file):
    result = describe(ooc_fw, model_file)
    expected = {"kind": "model", "kernel": "rbf", "C": 5, "classes": ["-7", "3"]}
    expected |= {"model_kind": "exact", "gap_scope": "all"}
    expected |= {"status": "converged", "scaling": "minmax"}
    assert expected.items() <= result.items()
    assert 0 <= result["certified_gap"] <= 1e-3


def test_landmark_model(ooc_fw, landmark_model):
    _, path = landmark_model
    result, model = describe(ooc_fw, path), load_model(path)
    expected = {"kind": "model", "model_kind": "landmarks", "gap_scope": "span", "n_support": 20}
    assert expected.items() <= result.items()
    assert result["certified_gap"] == model.certified_gap
    each = result.get("classifiers", [result])
    found = [(own["primal"], own["dual"], own["certified_gap"]) for own in each]
    assert found == [(own.primal, own.dual, own.certified_gap) for own in model.classifiers]
    lines = ooc_fw("info", path).out.splitlines()
    (gap,) = (line for line in lines if line.startswith("certified_gap"))
    assert gap.endswith("(within the span of the 20 landmarks)")


def test_checkpoint(ooc_fw, data_file, tmp_path):
    """`info` says how to resume the run; what takes models takes it, with a word."""
    path, model = tmp_path / "run 1.ckpt", tmp_path / "m.h5"
    options = "--C", "3", "--kernel", "laplacian", "--no-certify", "--method", "swap"
    train = "train", data_file, "-o", model, "--quiet", *options
    ooc_fw(*train, "--max-iter", "2", "--checkpoint", path).done()
    result = describe(ooc_fw, path)
    known = {"kind": "model", "status": "running", "n_features": 4, "kernel": "laplacian", "C": 3}
    assert known.items() <= result.items()
    (advice,) = result["advice"]
    assert advice.endswith(f"the command that began it and --resume '{path}'")
    resumed = ooc_fw(*train, "--json", "--resume", path)
    assert resumed.json()["iterations"] > 2
    for command in ("train {}", "verify {}", "convert {} out.h5", "train --stream {} -o out.h5"):
        words = [path if word == "{}" else word for word in command.split()]
        ooc_fw(*words).assert_refused(f"{path} ")
    for command in ("evaluate", "certify"):
        done = ooc_fw(command, path, data_file, "--json")
        assert f"{path} is a checkpoint: its run was not over" in done.err
        assert "certified_gap" in done.out or "accuracy" in done.out


def test_advice_is_printed_below(ooc_fw, tmp_path):
    np.save(tmp_path / "X.npy", np.ones((30, 3)))
    np.save(tmp_path / "y.npy", np.arange(30) % 2)
    data = tmp_path / "X.npy", "--labels", tmp_path / "y.npy"
    lines = ooc_fw("info", *data).out.splitlines()
    assert "- the rows may be in any order: training then samples from all over the file," in lines
    result = describe(ooc_fw, *data)
    said = "\n".join(lines).partition("- ")[2].partition("\n\n")[0]
    assert " ".join(said.split()) == " - ".join(result["advice"])
    assert lines[-2:] == ["next:", *(f"  {command}" for command in result["next"])]
    assert max(map(len, lines[:-2])) <= 80
    assert "unknown" not in "\n".join(lines)
    result = describe(ooc_fw, data[0])
    unknown = ("classes", "scaling", "shuffled", "sigma2", "gamma_auto")
    assert [result[name] for name in unknown] == [None] * 5


def test_names_of_columns_and_labels(ooc_fw, tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.csv"
    path.write_text("age,income,y\n1,20000,no\n2,90000,yes\n")
    ooc_fw("convert", path, tmp_path / "t.h5", "--label", "y").done()
    result = describe(ooc_fw, tmp_path / "t.h5")
    assert result["columns"] == ["age", "income"]
    assert result["classes"] == {"no": 1, "yes": 1}
    assert "income (from 20000 to 90000) 1 others hardly count" in result["advice"][0]


def test_text(ooc_fw, text_file, tmp_path, monkeypatch):
    result = describe(ooc_fw, text_file)
    assert (result["kind"], result["n_rows"], result["n_features"]) == ("text", 200, 4)
    assert sum(result["classes"].values()) == 200
    monkeypatch.setattr("ooc_fw.convert.readers.BLOCK_BYTES", 1000)
    result = describe(ooc_fw, text_file)
    assert result["n_rows"] is None
    assert 0 < result["n_looked_at"] < 200
    for name, content in (("x.h5", b"\0\1\2"), ("bad.txt", b"1 0:1\n")):
        (tmp_path / name).write_bytes(content)
        ooc_fw("info", tmp_path / name).assert_refused(name)
    ooc_fw("info", tmp_path / "bad.txt").assert_refused("bad.txt, line 1", "--zero-based")
    assert describe(ooc_fw, tmp_path / "bad.txt", "--zero-based")["n_features"] == 1


def test_table(ooc_fw, tmp_path):
    pytest.importorskip("pyarrow")
    lines = [f"n{i},{i},{7 if i != 5 else ''},{'red' if i % 2 else 'blue'},0" for i in range(60)]
    path = tmp_path / "my table.csv"
    path.write_text("\n".join(["name,size,same,colour,y", *lines, ""]))
    result = describe(ooc_fw, path, "--label", "y")
    assert (result["kind"], result["format"], result["n_columns"]) == ("table", "csv", 5)
    assert result["columns"]["name"] == {"holds": "words", "missing": 0, "different": 60}
    size = {"holds": "numbers", "missing": 0, "different": 60, "low": 0, "high": 59}
    assert result["columns"]["size"] == size
    assert result["columns"]["same"]["missing"] == 1
    assert result["next"] == [
        f"ooc-fw convert '{path}' 'my table.h5' --label y --one-hot colour --drop name "
        "--impute mean --scale standard"
    ]
    out = ooc_fw("info", path).out
    assert re.search("^colour +holds words, missing 0, different 2$", out, re.MULTILINE)
    assert "name one with --label" in out
    ooc_fw("info", path, "--label", "z").assert_refused("lacks column 'z'")
    path.write_text("0,red,0\n1,red,0\n")
    ooc_fw("info", path).assert_refused("holds numbers", "--no-header")
    result = describe(ooc_fw, path, "--no-header")
    assert list(result["columns"]) == ["0", "1", "2"]
    assert "table.h5' --no-header --label COLUMN" in result["next"][0]


def test_table_of_many_words_and_dates(ooc_fw, tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "few": [f"f{k % 30}" for k in range(400)],
        "many": [f"m{k % 31}" for k in range(400)],
        "own": [f"o{min(k, 390)}" for k in range(400)],
        "day": [f"2024-01-{k % 28 + 1:02}" if k else "" for k in range(400)],
        "y": [k % 2 for k in range(400)],
    }
    path = tmp_path / "t.csv"
    rows = [columns, *zip(*columns.values(), strict=True)]
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    result = describe(ooc_fw, path, "--label", "y")
    end = "--label y --one-hot few --target-encode many --dates day --drop own"
    assert result["next"][0].endswith(f"{end} --impute mean --scale standard")
    assert result["columns"]["day"] == {"holds": "dates", "missing": 1}
    command = shlex.split(result["next"][0])
    command[command.index("t.h5")] = tmp_path / "o.h5"
    ooc_fw(*command[1:]).done()
    columns["day"] = pa.array(columns["day"][1:2] * 400).cast("date32")
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    assert describe(ooc_fw, tmp_path / "t.parquet", "--label", "y")["next"][0].endswith(
        f"{end} --scale standard"
    )


@pytest.mark.parametrize("labels", ["yes,", "?,yes,no", "unknown,1", "NA,0,1,1"])
def test_words_that_stand_for_missing_labels_are_counted(ooc_fw, tmp_path, labels):
    """And one class is said to be too few; the command is one that `convert` takes."""
    pytest.importorskip("pyarrow")
    words = labels.split(",")
    rows = [f"{k % 40}x,{words[k % len(words)]}" for k in range(400)]
    path = tmp_path / "t.csv"
    path.write_text("city,y\n" + "\n".join(rows) + "\n")
    result = describe(ooc_fw, path, "--label", "y")
    n_missing = sum(row.endswith((",", ",?", ",NA")) for row in rows)
    said = "\n".join(result["advice"])
    assert (f"{n_missing} labels are missing" in said) == (n_missing > 0)
    assert ("all labels that were read are the same" in said) == (labels == "yes,")
    command = shlex.split(result["next"][0].replace(" t.h5", f" {tmp_path / 'o.h5'}"))
    outcome = ooc_fw(*command[1:])
    if labels == "yes,":
        outcome.assert_refused("no column left")  # the only one is of words, which need two classes
    else:
        outcome.done()


def test_a_row_with_too_few_cells_is_reported(ooc_fw, tmp_path):
    path = tmp_path / "short.csv"
    path.write_text("a,b,y\n1,2,no\n3,no\n5,6,yes\n7,9,no\n")
    outcome = ooc_fw("info", path, "--label", "y")
    outcome.assert_refused("short.csv, line 3: it has 2 cells for 3 columns")


def test_commands_that_are_pasted_run(ooc_fw, tmp_path, monkeypatch):
    """Options given are in them, and they suit arrays, text and tables."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(0.5, 2, size=(120, 30)))
    kind = np.where(counts[:, 0] > np.median(counts[:, 0]), "a", "b")
    monkeypatch.chdir(tmp_path)
    data = anndata.AnnData(csr_array(counts.astype(np.float32)), obs={"kind": kind})
    data.write_h5ad("cells.h5ad", compression="gzip")
    np.save("X.npy", np.eye(120, 40, dtype=np.float32) * 7)
    np.save("y.npy", np.arange(120) % 2)
    rows = [f"{7 * k},{k % 5},{k % 2}" for k in range(120)]
    (tmp_path / "t.csv").write_text("\n".join(["user_id,size,y", *rows, ""]))
    (tmp_path / "t.txt").write_text("".join(f"{k % 2} {k % 9 + 1}:1 10:{k}\n" for k in range(120)))
    for arguments, options in (
        (("cells.h5ad", "--label", "kind"), "cells.h5 --label kind"),
        (("X.npy", "--labels", "y.npy"), "X.h5 --labels y.npy"),
        (("t.csv", "--label", "y"), "t.h5 --label y --scale standard"),
        (("t.txt",), "t.h5 --scale maxabs"),
    ):
        (convert,) = describe(ooc_fw, *arguments)["next"]
        assert convert == f"ooc-fw convert {arguments[0]} {options}"
        ooc_fw(*shlex.split(convert)[1:]).done()
        (train,) = describe(ooc_fw, shlex.split(convert)[3])["next"]
        ooc_fw(*shlex.split(train)[1:], "--quiet").done()
        for command in describe(ooc_fw, shlex.split(train)[2].replace(".h5", ".model.h5"))["next"]:
            ooc_fw(*shlex.split(command.replace("DATA", shlex.split(train)[2]))[1:]).done()


def test_columns_that_differ_between_files(ooc_fw, tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(0)
    columns = {
        "tail": [f"N{k}" for k in rng.integers(100, size=500)],
        "bytes": [0, 954_639] * 250,
        "age": rng.uniform(20, 30, size=500),
        "label": ["a", "b"] * 250,
    }
    (tmp_path / "parts").mkdir()
    parquet.write_table(pa.table(columns), tmp_path / "parts" / "1.parquet")
    result = describe(ooc_fw, tmp_path / "parts", "--label", "label")
    options = "--label label --target-encode tail --scale standard"
    assert result["next"][0].endswith(options)
    said = "\n".join(result["advice"])
    assert "next to bytes (from 0 to 954639)" in said
    parquet.write_table(pa.table(columns | {"age": ["x"] * 500}), tmp_path / "parts" / "2.parquet")
    ooc_fw("info", tmp_path / "parts").assert_refused("age", "with one type for each column")
    ooc_fw("info", tmp_path / "part").assert_refused("does not exist; check the name")


def test_a_regression_model_counts_its_own_landmarks_and_has_no_classes(ooc_fw, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)).astype(np.float32)
    y = X @ [1.0, 2.0, 3.0] + 0.1 * rng.normal(size=200)
    data, model = write_dense(tmp_path / "d.h5", X, y), tmp_path / "m.h5"
    options = "--task", "regression", "--kernel", "linear", "--landmarks", 50
    ooc_fw("train", data, *options, "-o", model).done()
    found = describe(ooc_fw, model)
    assert found["n_support"] < 50
    assert found["classes"] == []
    assert re.search(r"^classes +none$", ooc_fw("info", model).out, re.MULTILINE)


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
        "american dates": {"day": [f"{k % 12 + 1}/{k % 28 + 1}/2024" for k in range(n)], "y": y},
        "constant with holes": {
            "x": holed,
            "same": ["7" if k % 5 else "" for k in range(n)],
            "y": y,
        },
        "empty column": {"x": holed, "none": [""] * n, "y": y},
        "decimal commas": {"price": ['"1,5"'] * n, "x": holed, "y": y},
        "amounts": {"x": holed, "y": rng.normal(size=n).round(4)},
        "missing labels": {"x": holed, "y": ["" if k % 9 == 0 else k % 2 for k in range(n)]},
        "wide and narrow": {"x": np.arange(n) * 1000, "z": y / 7, "y": y[::-1]},
        "many words": {
            "a": words,
            "b": words,
            "c": [*reversed(words)],
            "x": np.arange(n) * 99,
            "y": y,
        },
        "names": {
            "who": [f"n{k}" for k in range(n)],
            "user_id": np.arange(n) * 3,
            "x": holed,
            "y": y,
        },
    }


@pytest.mark.parametrize("name", tables())
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_commands_for_tables_run(ooc_fw, tmp_path, monkeypatch, name, kind):
    monkeypatch.chdir(tmp_path)
    columns = tables()[name]
    rows = [columns, *zip(*columns.values(), strict=True)]
    (tmp_path / "t.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    if kind == "parquet":
        csv, parquet = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(csv.read_csv("t.csv"), "t.parquet")
    follow(ooc_fw, f"t.{kind}", "--label", "y")
    if name == "many words":  # mostly zeros, which would take far more memory once centred
        assert describe(ooc_fw, "t.h5")["storage"] == "csr"


def follow(ooc_fw, *data):
    """Run what is printed until a model is trained."""
    for _ in range(3):
        result = describe(ooc_fw, *data)
        assert len(result["advice"]) <= 5
        (command,) = result["next"]
        words = shlex.split(command)
        ooc_fw(*words[1:], *["--quiet"] * (words[1] == "train")).done()
        if words[1] == "train":
            return words
        data = (words[3],)
    raise AssertionError(f"no training follows from {data}")


def sources():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 12))
    rare = (rng.random((400, 40)) < 0.02) * 1.0
    return {
        "rare": np.c_[X * 50, rare],
        "only rare": rare,
        "sparse": csr_array(np.c_[rare, 300 * rare[:, :3]]),
        "raw": X * np.tile([1, 1000], 6),
        "holes": np.where(rng.random(X.shape) < 0.01, np.nan, X),
        "times": X + 1.7e9,
        "constant": np.c_[X, np.full(400, 0.1)],
    }


@pytest.mark.parametrize("name", sources())
def test_commands_for_arrays_run(ooc_fw, tmp_path, monkeypatch, name):
    """And nobody is advised to scale what is scaled."""
    monkeypatch.chdir(tmp_path)
    X, y = sources()[name], np.arange(400) % 2.0
    data = anndata.AnnData(X, obs={"kind": np.where(y > 0, "a", "b")})
    data.write_h5ad("X.h5ad")
    words = follow(ooc_fw, "X.h5ad", "--label", "kind")
    result = describe(ooc_fw, words[2])
    assert not any("--scale" in each for each in result["advice"]) or result["scaling"] == "none"


def test_wide_rows_take_memory_for_the_columns_they_have(ooc_fw, tmp_path):
    path = tmp_path / "wide.txt"
    path.write_text("1 3:1 20:2\n-1 3:2\n1 7:1\n")
    describe(ooc_fw, path)  # compiles what is needed
    path.write_text("1 3:1 20000000:2\n-1 3:2\n1 7:1\n")
    tracemalloc.start()
    result = describe(ooc_fw, path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result["n_features"] == 20_000_000
    assert peak < 20e6


def test_gaps_of_streams_and_unfinished_models(ooc_fw, data_file, text_file, tmp_path):
    streamed, stopped = tmp_path / "s.h5", tmp_path / "u.h5"
    ooc_fw("train", text_file, "--stream", "-o", streamed, "--quiet").done()
    assert describe(ooc_fw, streamed)["gap_scope"] == "chunk"
    ooc_fw("train", data_file, "--no-certify", "-o", stopped, "--quiet").done()
    assert describe(ooc_fw, stopped)["gap_scope"] is None


storages = pytest.mark.parametrize("storage", [np.asarray, csr_array])


def advised(ooc_fw, folder, X, y=None, storage=np.asarray, names=None):
    """What is found in rows, whose labels are a column `y`."""
    obs = {} if y is None else {"y": y}
    data = anndata.AnnData(storage(np.asarray(X, dtype=np.float32)), obs=obs)
    data.var_names = names or [f"g{j}" for j in range(X.shape[1])]
    data.write_h5ad(folder / "X.h5ad")
    label = [] if y is None else ["--label", "y"]
    return describe(ooc_fw, folder / "X.h5ad", *label)


@storages
def test_findings_equal_those_of_numpy(ooc_fw, tmp_path, storage):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 6)) * (rng.random((500, 6)) < 0.3)
    X[7, 1] = X[8, 2] = X[250, 0] = np.inf
    found = advised(ooc_fw, tmp_path, X, np.arange(500) % 3, storage)
    X = X[np.isfinite(X).all(axis=1)]
    assert (found["n_looked_at"], found["bad_rows"]) == (500, 3)
    assert found["density"] == pytest.approx(np.count_nonzero(X) / X.size)
    assert found["classes"] == {"0": 167, "1": 167, "2": 166}


def test_sample_of_a_large_source_comes_from_all_over_it(monkeypatch):
    monkeypatch.setattr(info, "SAMPLE_BYTES", 40_000)
    slices = info.sample_slices(open_source(np.zeros((100_000, 1))))
    assert sum(stop - start for start, stop in slices) == pytest.approx(10_000, rel=0.02)
    assert len(slices) == info.STRETCHES
    ends = [place for one in slices for place in one]
    assert ends == sorted(ends)
    assert np.diff([start for start, _ in slices]).max() < 3 * 100_000 / info.STRETCHES
    assert info.sample_slices(open_source(np.zeros((10_000, 1)))) == [(0, 10_000)]


def test_advice(ooc_fw, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.random((200, 3))
    y = rng.permutation([0.0, 1.0] * 100)
    at_3 = np.arange(200) == 3
    wide = X * [[1, 1000, 1]]
    for words, rows, labels in (
        ("there are no labels", X, None),
        ("all labels that were read are the same", X, np.zeros(200)),
        ("regression", X, np.arange(200.0)),
        ("next to b (from ", wide, y),
        ("2 others hardly count", wide, y),
        ("may be in any order", X, y),
        ("1 of the rows that were read hold values", np.where(at_3[:, None], np.nan, X), y),
    ):
        found = advised(ooc_fw, tmp_path, rows, labels, names=["a", "b", "c"])
        assert words in "\n".join(found["advice"])
    (only,) = advised(ooc_fw, tmp_path, X, y)["advice"]
    assert only.startswith("the rows may be in any order")
