import re
import shlex
import tracemalloc

import anndata
import h5py
import numpy as np
import pytest
from scipy.sparse import csr_array

from ooc_fw.data.opening import conversion
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
    for name, value in {"sigma2": sigma2, "gamma_auto": 1 / (2 * sigma2)}.items():
        assert result.pop(name) == pytest.approx(value, rel=1e-6), name
    assert result == {
        **{"kind": "data", "n_rows": 200, "n_features": 4, "storage": "dense", "classes": counts},
        **{"scaling": "minmax", "log1p": False, "shuffled": True, "columns": None},
        **{"bad_rows": 0, "advice": [], "next": [f"ooc-fw train {data_file}"]},
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
    lines = ooc_fw("info", path).out.splitlines()
    (gap,) = (line for line in lines if line.startswith("certified_gap"))
    assert gap.endswith("(within the span of the 20 landmarks)")


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


def test_gaps_of_streams_and_unfinished_models(ooc_fw, data_file, text_file, tmp_path):
    streamed, stopped = tmp_path / "s.h5", tmp_path / "u.h5"
    ooc_fw("train", text_file, "--stream", "-o", streamed, "--quiet").done()
    assert describe(ooc_fw, streamed)["gap_scope"] == "chunk"
    ooc_fw("train", data_file, "--no-certify", "-o", stopped, "--quiet").done()
    assert describe(ooc_fw, stopped)["gap_scope"] is None


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
    out = tmp_path / "out.h5"
    for command in (("train", path), ("verify", path), ("convert", path, out)):
        ooc_fw(*command).assert_refused(f"{path} ")
    ooc_fw("train", "--stream", path, "-o", out).assert_refused(f"{path} ")
    for command in ("evaluate", "certify"):
        done = ooc_fw(command, path, data_file, "--json")
        assert f"{path} is a checkpoint: its run was not over" in done.err
        assert "certified_gap" in done.out or "accuracy" in done.out


def test_advice_is_printed_below(ooc_fw, tmp_path):
    np.save(tmp_path / "X.npy", np.ones((30, 3)))
    np.save(tmp_path / "y.npy", np.arange(30) % 2)
    data = tmp_path / "X.npy", "--labels", tmp_path / "y.npy"
    lines = ooc_fw("info", *data).out.splitlines()
    result = describe(ooc_fw, *data)
    said = "\n".join(lines).partition("- ")[2].partition("\n\n")[0]
    assert " ".join(said.split()) == " - ".join(result["advice"])
    assert lines[-2:] == ["next:", *(f"  {command}" for command in result["next"])]
    assert max(map(len, lines[:-2])) <= 80
    result = describe(ooc_fw, data[0])
    unknown = ("classes", "scaling", "shuffled", "sigma2", "gamma_auto")
    assert [result[name] for name in unknown] == [None] * 5


def test_text(ooc_fw, text_file, tmp_path, monkeypatch):
    result = describe(ooc_fw, text_file)
    assert (result["kind"], result["n_rows"], result["n_features"]) == ("text", 200, 4)
    assert sum(result["classes"].values()) == 200
    monkeypatch.setattr("ooc_fw.convert.readers.BLOCK_BYTES", 1000)
    result = describe(ooc_fw, text_file)
    assert result["n_rows"] is None
    assert 0 < sum(result["classes"].values()) < 200
    (tmp_path / "zero.txt").write_text("1 0:1\n")
    assert describe(ooc_fw, tmp_path / "zero.txt", "--zero-based")["n_features"] == 1


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


# -- tables --------------------------------------------------------------------------------------


def write_table(path, columns):
    """CSV, or by its suffix Parquet, with these columns."""
    rows = [columns, *zip(*columns.values(), strict=True)]
    text = path.with_suffix(".csv")
    text.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    if path.suffix == ".parquet":
        csv, parquet = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(csv.read_csv(text), path)
    return path


def test_table(ooc_fw, tmp_path):
    lines = [f"n{i},{i},{7 if i != 5 else ''},{'red' if i % 2 else 'blue'},0" for i in range(60)]
    path = tmp_path / "my table.csv"
    path.write_text("\n".join(["name,size,same,colour,y", *lines, ""]))
    result = describe(ooc_fw, path, "--label", "y")
    assert (result["kind"], result["format"], result["n_columns"]) == ("table", "csv", 5)
    assert result["columns"]["name"] == {"holds": "words", "missing": 0, "different": 60}
    assert result["columns"]["size"] == {"holds": "numbers", "missing": 0, "different": 60}
    assert result["columns"]["same"]["missing"] == 1
    assert result["next"] == [
        f"ooc-fw convert '{path}' 'my table.h5' --label y --one-hot colour --target-encode name "
        "--impute mean --scale standard"
    ]
    out = ooc_fw("info", path).out
    assert re.search("^colour +holds words, missing 0, different 2$", out, re.MULTILINE)
    assert "name one with --label" in out
    path.write_text("0,red,0\n1,red,0\n")
    result = describe(ooc_fw, path, "--no-header")
    assert list(result["columns"]) == ["0", "1", "2"]
    assert "table.h5' --no-header --label COLUMN" in result["next"][0]


def test_a_row_with_too_few_cells_is_refused(ooc_fw, tmp_path):
    path = tmp_path / "short.csv"
    path.write_text("a,b,y\n1,2,no\n3,no\n5,6,yes\n7,9,no\n")
    outcome = ooc_fw("info", path, "--label", "y")
    outcome.assert_refused("short.csv, line 3: it has 2 cells for 3 columns")


@pytest.mark.parametrize("labels", ["yes,", "?,yes,no", "unknown,1", "NA,0,1,1"])
def test_words_that_stand_for_missing_labels_are_counted(ooc_fw, tmp_path, labels):
    words = labels.split(",")
    rows = [words[k % len(words)] for k in range(400)]
    path = write_table(tmp_path / "t.csv", {"x": range(400), "y": rows})
    said = "\n".join(describe(ooc_fw, path, "--label", "y")["advice"])
    n_missing = sum(row in ("", "?", "NA") for row in rows)
    assert (f"{n_missing} labels are missing" in said) == (n_missing > 0)
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["X"], file["y"] = np.eye(400), rows
    found = describe(ooc_fw, tmp_path / "t.h5")
    assert any(f"{n_missing} labels are missing" in said for said in found["advice"]) == (
        n_missing > 0
    )
    assert "" not in found["classes"]


def test_folders_and_columns_that_differ_between_files(ooc_fw, tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"tail": [f"N{k % 99}" for k in range(500)], "age": np.arange(500) / 7}
    columns |= {"day": pa.array(np.full(500, 7)).cast("int32").cast("date32"), "a": ["x"] * 500}
    (tmp_path / "parts").mkdir()
    parquet.write_table(pa.table(columns), tmp_path / "parts" / "1.parquet")
    result = describe(ooc_fw, tmp_path / "parts", "--label", "a")
    options = "--label a --target-encode tail --dates day --scale standard"
    assert result["next"][0].endswith(options)
    parquet.write_table(pa.table(columns | {"age": ["x"] * 500}), tmp_path / "parts" / "2.parquet")
    ooc_fw("info", tmp_path / "parts").assert_refused("age", "with one type for each column")


# -- commands that are pasted run ----------------------------------------------------------------


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
        "decimal commas": {"price": ['"1,5"'] * n, "x": holed, "y": y},
        "missing labels": {"x": holed, "y": ["" if k % 9 == 0 else k % 2 for k in range(n)]},
        "many words": {"a": words, "b": words, "c": words[::-1], "x": np.arange(n) * 99, "y": y},
        "names": {"who": [f"n{k}" for k in range(n)], '"a, b"': words, "x": holed, "y": y},
    }


@pytest.mark.parametrize("name", tables())
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_commands_for_tables(ooc_fw, tmp_path, monkeypatch, name, kind):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / f"t.{kind}", tables()[name])
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
            return words[2]
        data = (words[3],)
    raise AssertionError(f"no training follows from {data}")


def sources():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 12))
    rare = (rng.random((400, 40)) < 0.02) * 1.0
    return {
        "sparse": csr_array(np.c_[rare, 300 * rare[:, :3]]),
        "raw": np.c_[X * np.tile([1, 1000], 6), rare],
        "times": np.c_[X + 1.7e9, np.full(400, 0.1)],
    }


@pytest.mark.parametrize("name", sources())
def test_commands_for_arrays(ooc_fw, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    y = np.where(np.arange(400) % 2, "a", "b")
    anndata.AnnData(sources()[name], obs={"kind": y}).write_h5ad("X.h5ad")
    data = follow(ooc_fw, "X.h5ad", "--label", "kind")
    assert describe(ooc_fw, data)["scaling"] != "none"
    (command,) = describe(ooc_fw, data.replace(".h5", ".model.h5"))["next"]
    ooc_fw(*shlex.split(command.replace("DATA", data))[1:]).done()


def test_commands_have_the_options_given(ooc_fw, text_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("X.npy", np.eye(120, 40, dtype=np.float32) * 7)
    np.save("y.npy", np.arange(120) % 2)
    (convert,) = describe(ooc_fw, "X.npy", "--labels", "y.npy")["next"]
    assert convert == "ooc-fw convert X.npy X.h5 --labels y.npy --scale standard"
    follow(ooc_fw, "X.npy", "--labels", "y.npy")
    follow(ooc_fw, text_file)
    assert conversion("-") == "ooc-fw convert - data.h5"  # standard input


def advised(ooc_fw, folder, X, y=None, storage=np.asarray):
    """What is found in rows, whose labels are a column `y`."""
    obs = {} if y is None else {"y": y}
    anndata.AnnData(storage(np.asarray(X, dtype=np.float32)), obs=obs).write_h5ad(folder / "X.h5ad")
    return describe(ooc_fw, folder / "X.h5ad", *([] if y is None else ["--label", "y"]))


@pytest.mark.parametrize("storage", [np.asarray, csr_array])
def test_findings_equal_those_of_numpy(ooc_fw, tmp_path, storage):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 6)) * (rng.random((500, 6)) < 0.3)
    X[7, 1] = X[8, 2] = X[250, 0] = np.inf
    found = advised(ooc_fw, tmp_path, X, np.arange(500) % 3, storage)
    assert found["bad_rows"] == 3
    assert found["classes"] == {"0": 167, "1": 167, "2": 166}


def test_advice(ooc_fw, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.random((200, 3))
    y = rng.permutation([0.0, 1.0] * 100)
    for words, rows, labels in (
        ("there are no labels", X, None),
        ("amounts need --task regression", X, np.arange(200.0)),
        (
            "1 of the rows that were read hold",
            np.where(np.arange(600).reshape(X.shape) == 9, np.nan, X),
            y,
        ),
    ):
        assert words in "\n".join(advised(ooc_fw, tmp_path, rows, labels)["advice"])
