"""``ooc-fw convert`` and ``split``, which make data files, and ``verify``, which checks them."""

import io
import json
import tracemalloc
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest

from ooc_fw import FrankWolfeSVC, InputError, load_model, open_dataset, train_test_split
from ooc_fw.conversion.writer import write_parts
from ooc_fw.data.opening import draw_test_rows
from tests.support.contracts import to_dense
from tests.support.methods import grid

# -- convert ---------------------------------------------------------------------------------------


@pytest.fixture
def text(tmp_path, monkeypatch):
    """Work in a folder with a short text."""
    monkeypatch.chdir(tmp_path)
    Path("train.txt").write_text("+1 1:1 2:4\n-1 1:2 3:0.5\n+1 1:3 2:2\n")


def test_the_report_says_what_the_file_holds(ooc_fw, text):
    options = "--scale", "minmax", "--log1p", "--seed", 7, "--dense", "--json"
    found = ooc_fw("convert", "train.txt", "out.h5", *options).json()
    expected = {"output": "out.h5", "classes": {"-1": 1, "1": 2}, "n_rows": 3, "n_features": 3}
    expected |= {"sparse": False, "scaling": "minmax", "log1p": True, "seed": 7}
    assert expected.items() <= found.items()
    with h5py.File("out.h5") as file:
        assert (file.attrs["scaling"], file.attrs["shuffle_seed"]) == (b"minmax", 7)


def test_standard_input_and_options(ooc_fw, text, monkeypatch):
    data = Path("train.txt").read_bytes().replace(b"3:", b"0:")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    options = "--zero-based --sparse --no-shuffle --n-features 9 --compression gzip --quiet"
    assert ooc_fw("convert", "-", "out.h5", *options.split()) == (0, "", "")
    with h5py.File("out.h5") as file:
        assert file["X"].attrs["shape"].tolist() == [3, 9]
        assert not file.attrs["shuffled"]
        assert file["X/data"].compression == "gzip"


def test_options_of_tables(ooc_fw, text):
    """Names with commas are quoted, and options that take names add up."""
    Path("t.csv").write_text('a;"b, c";colour;size;buys\n3;5;red;;yes\n4;6;blue;2;no\n')
    options = "--label buys --one-hot colour --impute mean --no-shuffle --dense --delimiter ;"
    drop = "--drop", "a", "--drop", '"b, c"'
    outcome = ooc_fw("convert", "t.csv", "out.h5", *options.split(), *drop).done()
    assert outcome.err.splitlines()[1] == "classes: no (1), yes (1)"
    assert "note: 1 missing values became the means of their columns" in outcome.err
    with h5py.File("out.h5") as file:
        assert file["X"][...].tolist() == [[0, 1, 2], [1, 0, 2]]
        assert file.attrs["columns"].tolist() == [b"colour=blue", b"colour=red", b"size"]


ROWS = "0,tcp,5,normal.\n1,udp,6,smurf.\n2,tcp,7,normal.\n3,udp,8,neptune.\n" * 30
NAMES = "duration,protocol,src_bytes,label"


@pytest.fixture
def network(ooc_fw, here):
    """A table without a header, converted and learned with labels that are joined."""
    Path("net.csv").write_text(ROWS)
    table = "--names", NAMES, "--label", "label", "--one-hot", "protocol"
    ooc_fw("convert", "net.csv", "net.h5", *table, "--labels-as", "normal.=0,*=1").done()
    ooc_fw("train", "net.h5", "-o", "net.model.h5").done()


def test_joined_names_that_no_row_has_are_told(ooc_fw, network):
    """Later rows may lack some of the labels, but not all of those that the map names."""
    Path("later.csv").write_text(ROWS.replace("normal.", "normal"))
    for like in ("net.h5", "net.model.h5"):
        command = "convert", "later.csv", "later.h5", "--like", like
        said = "note: no label in later.csv is 'normal.', as --labels-as has it; the labels are "
        assert f"{said}'neptune.', 'normal', 'smurf.'" in ooc_fw(*command).done().err
        ooc_fw(*command, "--labels-as", "normal=0,smruf.=1,*=1").assert_refused("is 'smruf.'")
        assert "note: no label" not in ooc_fw("convert", "net.csv", *command[2:]).done().err
    said = "no label in later.csv is 'normal.': all of them count as 1"
    assert said in ooc_fw("evaluate", "net.model.h5", "later.csv").done().err


def test_the_fault_of_a_header_and_of_missing_values_is_named(ooc_fw, network):
    like = "convert", "later.csv", "later.h5", "--like", "net.h5"
    Path("later.csv").write_text(NAMES.replace("src", "scr") + "\n" + ROWS)
    said = "first line of later.csv names the columns, but 'scr_bytes' is not"
    ooc_fw(*like).assert_refused(said)
    ooc_fw("predict", "net.model.h5", "later.csv").assert_refused(said)
    ooc_fw(*like, "--header").assert_refused("lacks column 'src_bytes'")
    Path("later.csv").write_text(NAMES + "\n" + ROWS)
    ooc_fw(*like, "--header").done()
    Path("later.csv").write_text(ROWS.replace(",5,", ",,"))
    for command in (like, ("predict", "net.model.h5", "later.csv")):
        ooc_fw(*command).assert_refused("'src_bytes' is missing, and net", "or train on a file")


def test_novelty_learns_and_judges_one_class(ooc_fw, network):
    """A file of one class is split, and the label of ordinary rows is known to the model."""
    Path("one.csv").write_text("".join(f"{k},{k % 7},normal\n" for k in range(200)))
    Path("two.csv").write_text("".join(f"{k},{k % 7},normal\n{k},{k},odd\n" for k in range(50)))
    for name in ("one", "two"):
        table = f"convert {name}.csv {name}.h5 --names a,b,label --label label"
        ooc_fw(*table.split()).done()
    ooc_fw("split", "one.h5", "part.h5", "rest.h5").done()
    found = ooc_fw("info", "part.h5", "--json").json()
    assert found["next"] == ["ooc-fw train part.h5 --task novelty"]
    known = "--ordinary", "normal"
    for data, told in (("part.h5", ()), ("two.h5", ()), ("part.h5", known), ("two.h5", known)):
        learn = "train", data, "--task", "novelty", "-o", "one.model.h5"
        assert ("several labels ('normal', 'odd')" in ooc_fw(*learn, *told).done().err) == (
            data == "two.h5" and not told
        )
        judge = "evaluate", "one.model.h5", "two.h5"
        if not told:
            ooc_fw(*judge).assert_refused("found: 'normal', 'odd'", "--ordinary LABEL")
        found = ooc_fw(*judge, *([] if told else known), "--json").json()
        assert [each["support"] for each in found["classes"].values()] == [50, 50]
    Path("odd.csv").write_text("a,b,label\n1,2,odd\n")
    assert (
        "no label in odd.csv is 'normal'"
        in ooc_fw("evaluate", "one.model.h5", "odd.csv").done().err
    )
    about = ooc_fw("info", "one.model.h5", "--json").json()
    assert (about["ordinary"], about["gap_scope"]) == ("normal", "weighted")
    assert ooc_fw("certify", "one.model.h5", "two.h5", "--json").json()["gap_scope"] == "weighted"
    # Of the labels 0 and 1, the label 1 is novel if 0 is ordinary.
    learn = "train", "net.h5", "--task", "novelty", "--ordinary", "0", "-o", "zero.h5"
    ooc_fw(*learn).done()
    found = ooc_fw("evaluate", "zero.h5", "net.h5", "--json").json()
    assert [each["support"] for each in found["classes"].values()] == [60, 60]


def test_labels_in_memory_are_joined_like_those_of_the_file(ooc_fw, network):
    with open_dataset("net.h5") as source:
        X = to_dense(source.read(0, 120))
        ids = source.row_ids(0, 120)
    raw = np.array([line.split(",")[-1] for line in ROWS.split()])[ids]
    model = FrankWolfeSVC().fit("net.h5")
    X = pd.DataFrame(X, columns=model.model_.columns)
    assert model.score(X, raw) == model.score("net.h5") == model.score(X, 1 * (raw != "normal."))
    model = FrankWolfeSVC().fit("d.h5")
    with pytest.raises(InputError, match=r"no label in y is a class .*\(known: -7, 3; found: 5\)"):
        model.score("d.h5", np.full(model.model_.n_rows, 5))


# -- split -----------------------------------------------------------------------------------------


def rows_of(path):
    """Rows, labels and row numbers of a file."""
    with open_dataset(path) as source:
        n = source.n_rows
        return to_dense(source.read(0, n)), source.labels(0, n), source.row_ids(0, n)


@pytest.mark.parametrize(
    "options", grid(["", "--sparse --scale none", "--no-shuffle --scale standard"], quick=1)
)
def test_the_parts_are_the_rows_of_the_file(ooc_fw, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    lines = [f"{k},{'red' if k % 3 else 'blue'},{'cat' if k % 5 else 'dog'}" for k in range(60)]
    Path("t.csv").write_text("\n".join(["size,colour,kind", *lines]))
    table = "--label", "kind", "--one-hot", "colour", *options.split()
    ooc_fw("convert", "t.csv", "d.h5", *table).done()
    command = "split", "d.h5", "train.h5", "test.h5", "--test-share", "0.25", "--json"
    for seed in range(4):  # one of which would not give the shares by chance
        parts = ooc_fw(*command, "--seed", seed).json()["parts"]
        assert [part["n_rows"] for part in parts] == [45, 15]
        shares = [part["classes"] for part in parts]
        assert shares == [{"cat": 36, "dog": 9}, {"cat": 12, "dog": 3}]
    X, y, ids = rows_of("d.h5")
    order = np.argsort(ids)
    place = {tuple(row): k for k, row in enumerate(X[order].tolist())}
    found = []
    for path in ("train.h5", "test.h5"):
        X, labels, ids = rows_of(path)
        places = np.array([place[tuple(row)] for row in X.tolist()])
        np.testing.assert_array_equal(ids, places)  # the numbers of the input
        np.testing.assert_array_equal(labels, y[order][places])
        found += places.tolist()
        ooc_fw("verify", path).done()
    assert sorted(found) == list(range(60))
    with open_dataset("d.h5") as whole, open_dataset("train.h5") as part:
        assert whole.scaling.same_as(part.scaling)
        assert (whole.columns, whole.shuffled) == (part.columns, part.shuffled)


def test_rows_without_labels_are_split_at_random(ooc_fw, here, table):
    ooc_fw("split", "X.npy", "a.h5", "b.h5", "--seed", "3").done()
    with open_dataset("b.h5") as source:
        assert not source.has_labels
        rows = [int(np.flatnonzero((table.X == x).all(axis=1))[0]) for x in source.read(0, 60)]
    assert rows == sorted(set(rows)) != list(range(60))
    train, test = train_test_split("X.npy", 0.3, seed=3, stratify=False)
    assert (train.n_rows, test.n_rows) == (140, 60)


def test_a_split_takes_few_bytes_for_each_row(tmp_path):
    n = 400_000
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["X"], file["y"] = rng.normal(size=(n, 1)).astype(np.float32), np.arange(n) % 3.0
    with open_dataset(tmp_path / "d.h5") as source:
        tracemalloc.start()
        test_rows = draw_test_rows(source, 0.3, 0, stratify=True)
        write_parts(source, test_rows, [tmp_path / "a.h5", tmp_path / "b.h5"])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 50 * n + 40e6


def test_targets_of_a_regression_are_marked(ooc_fw, tmp_path, monkeypatch):
    """Though they have six values only; parts and files like them keep the mark."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = ["x,y", *(f"{rng.normal():.3f},{k % 6}" for k in range(120))]
    Path("t.csv").write_text("\n".join(lines) + "\n")
    table = "--label", "y", "--task", "regression", "--quiet"
    ooc_fw("convert", "t.csv", "whole.h5", *table).done()
    parts = ooc_fw("split", "whole.h5", "train.h5", "test.h5", "--json").json()["parts"]
    assert [part["classes"] for part in parts] == [{}, {}]
    ooc_fw("convert", "t.csv", "later.h5", "--like", "train.h5", "--quiet").done()
    for path in ("whole.h5", "train.h5", "test.h5", "later.h5"):
        with open_dataset(path) as source:
            assert source.targets is True
        assert "--task regression" in ooc_fw("info", path).out
    ooc_fw("train", "train.h5", "--task", "regression", "-o", "m.h5", "--quiet").done()
    ooc_fw("evaluate", "m.h5", "test.h5").done()


@pytest.mark.parametrize("form", ["csv", "parquet", "no header", "h5ad", "h5ad, converted", "npy"])
def test_groups_stay_together_in_split_and_tune(ooc_fw, tmp_path, monkeypatch, form):
    """Whatever holds them: the table before its conversion, obs, or a file of its own."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    donors = np.array([f"p{k}" for k in rng.integers(0, 12, 150)])
    X = rng.normal(size=(150, 2)).astype(np.float32)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "donor": donors, "y": X[:, 0] > 0})
    frame.to_csv("t.csv", index=False)
    frame.to_parquet("t.parquet")
    frame.to_csv("none.csv", index=False, header=False)
    cells = anndata.AnnData(X, frame[["donor", "y"]].astype("category").rename(index=str))
    cells.write_h5ad("t.h5ad")
    np.save("X.npy", X)
    np.save("donors.npy", donors)
    np.save("y.npy", frame["y"])
    convert, data, groups = {
        "csv": ("t.csv d.h5 --label y --drop donor", "d.h5", "t.csv:donor"),
        "parquet": ("t.parquet d.h5 --label y --drop donor", "d.h5", "t.parquet:donor"),
        "no header": ("none.csv d.h5 --no-header --label 3 --drop 2", "d.h5", "none.csv:2"),
        "h5ad": ("", "t.h5ad --label y", "donor"),
        "h5ad, converted": ("t.h5ad d.h5 --label y", "d.h5", "t.h5ad:donor"),
        "npy": ("", "X.npy --labels y.npy", "donors.npy"),
    }[form]
    if convert:
        ooc_fw("convert", *convert.split(), "--quiet").done()
    name, *label = data.split()
    told = ooc_fw("split", name, "a.h5", "b.h5", *label, "--groups", groups).done().err
    sides = []
    for path in ("a.h5", "b.h5"):
        with h5py.File(path) as file:
            sides.append({*donors[file["row"][...]].tolist()})
    assert not sides[0] & sides[1]
    assert sides[0] | sides[1] == {*donors.tolist()}
    share = np.isin(donors, [*sides[1]]).mean()
    counts = f"{len(sides[0])} and {len(sides[1])} groups"
    assert f"{counts}; the share of test rows is {share:.3f}" in told
    assert f"test groups: {', '.join(sorted(sides[1]))}\n" in told
    if form in ("csv", "npy"):
        tune = "--C 1 --gamma auto -o m.h5 --json --quiet".split()
        where = ["a.h5", "--groups", groups]
        assert ooc_fw("tune", *where, *tune).json()["best"]["n_rows"] > 50
        ooc_fw("split", "a.h5", "new.h5", "b.h5", "--groups", "nobody").assert_refused(
            "FILE:COLUMN"
        )
    elif not convert:
        misspelt = ooc_fw("split", name, "c.h5", "e.h5", *label, "--groups", "doner")
        misspelt.assert_refused("t.h5ad has no 'doner'; it has", "obs/donor")


# -- verify ----------------------------------------------------------------------------------------


def test_damage_is_named_and_met_by_every_command_that_reads_rows(ooc_fw, here):
    assert ooc_fw("verify", "d.h5") == (0, "d.h5: intact\n", "")
    with h5py.File("d.h5") as file:
        place = file["X"].id.get_chunk_info(0).byte_offset
    with open("d.h5", "r+b") as raw:
        raw.seek(place)
        raw.write(b"\x7f")
    damage = "d.h5 is damaged: X, rows 0 to 199"
    outcome = ooc_fw("verify", "d.h5")
    assert (outcome.status, outcome.out) == (1, "d.h5 is damaged\n")
    assert outcome.err == (
        f"ooc-fw: {damage} do not match their checksum; restore a copy or convert the data again\n"
    )
    result = json.loads(ooc_fw("verify", "d.h5", "--json").out)
    assert not result["intact"]
    assert f"ooc-fw: {result['damage'][0]}\n" == outcome.err
    for command in (
        "train d.h5 -o new.h5 --quiet",
        "tune d.h5 -o new.h5 --quiet",
        "predict m.h5 d.h5",
        "evaluate m.h5 d.h5",
        "importance m.h5 d.h5 --quiet",
        "split d.h5 new.h5 new2.h5 --quiet",
    ):
        ooc_fw(*command.split()).assert_refused(damage)
    ooc_fw("certify", "m.h5", "d.h5").assert_refused("d.h5")
    assert not list(here.glob("new*"))


def test_labels_with_commas_are_named_in_quotes(ooc_fw, here):
    """Words of text stay as they are written; only a column of numbers becomes numbers."""
    rows = [f'{k},"{label}"' for k in range(30) for label in ("a, b", "TRUE", "True")]
    Path("t.csv").write_text("\n".join(["x,y", *rows, ""]))
    ooc_fw("convert", "t.csv", "t.h5", "--label", "y").done()
    with open_dataset("t.h5") as source:
        assert {*source.labels(0, 90).tolist()} == {"a, b", "TRUE", "True"}
    weights = '--class-weight="a, b"=2,True=3'
    ooc_fw("train", "t.h5", "-o", "new.h5", weights).done()
    assert {*load_model("new.h5").penalties.tolist()} == {1, 2, 3}
    ooc_fw("convert", "t.csv", "j.h5", "--label", "y", "--labels-as", '"a, b"=1,*=-1').done()
    with open_dataset("j.h5") as source:
        assert sorted({*source.labels(0, 90).tolist()}) == [-1, 1]
