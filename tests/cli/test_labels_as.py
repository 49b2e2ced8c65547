"""``--labels-as``: new labels at conversion, recorded, done to later files, and never twice."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import FrankWolfeSVC, InputError, load_model, open_dataset
from ooc_fw.cli.main import main
from ooc_fw.data.labels import LabelMap
from tests.convert.converted import convert_files

WORDS = ("normal.", "smurf.", "neptune.")
TWO = "normal.=normal,*=attack"
KINDS = {"words": TWO, "numbers": "normal.=1,*=-1", "three": "smurf.=7,normal.=0,neptune.=x"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Rows with labels `WORDS` as a table, and the same rows with mapped labels, by each map."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    which = rng.integers(0, 3, 120)
    rows = rng.normal(size=(120, 2)) + 3 * np.eye(3, 2)[which]
    maps = {"raw": {word: word for word in WORDS}}
    maps["words"] = dict.fromkeys(WORDS, "attack") | {"normal.": "normal"}
    maps["numbers"] = dict.fromkeys(WORDS, "-1") | {"normal.": "1"}
    maps["three"] = {"smurf.": "7", "normal.": "0", "neptune.": "x"}
    for name, new in maps.items():
        lines = [f"{x:.4f},{y:.4f},{new[WORDS[k]]}" for (x, y), k in zip(rows, which, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,y", *lines, ""]))
        convert_files([f"{name}.csv"], f"{name}.h5", label="y")
    return tmp_path


def train(data, *options):
    """Model file of `data`."""
    assert main(["train", str(data), "-o", "model.h5", "--C", "3", "--quiet", *options]) == 0
    return load_model("model.h5")


def same(model, other):
    """Whether models have the same classes and bytes of weights."""
    pairs = zip(model.classifiers, other.classifiers, strict=True)
    return model.classes.tolist() == other.classes.tolist() and all(
        one.alpha.tobytes() == two.alpha.tobytes() and (one.labels == two.labels).all()
        for one, two in pairs
    )


def accuracy(capsys, *arguments):
    capsys.readouterr()
    assert main(["evaluate", "model.h5", *map(str, arguments), "--quiet", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["accuracy"]


@pytest.mark.parametrize("kind", KINDS)
def test_map_then_train_is_train_on_mapped_data(folder, capsys, kind):
    expected = train(f"{kind}.h5")
    right = accuracy(capsys, f"{kind}.csv")
    convert_files(["raw.csv"], "mapped.h5", label="y", labels_as=KINDS[kind])
    model = train("mapped.h5")
    assert same(model, expected)
    assert model.labels_as == LabelMap([KINDS[kind]]).maps
    convert_files([f"{kind}.csv"], "new.h5", label="y", labels_as=identity(kind))
    for test in ("raw.csv", "raw.h5", "mapped.h5"):  # told nothing, and mapped once
        assert accuracy(capsys, test) == right
    for data in ("raw.h5", "mapped.h5"):
        assert main(["certify", "model.h5", data, "--quiet"]) == 0
    capsys.readouterr()
    assert accuracy(capsys, "new.h5") == right  # it has a map of its own
    # Files that are converted like the training file, and parts of it, have its map.
    convert_files(["raw.csv"], "like.h5", like="mapped.h5")
    assert main(["split", "mapped.h5", "part.h5", "rest.h5", "--quiet"]) == 0
    for made in ("like.h5", "part.h5"):
        with open_dataset(made) as source:
            assert source.labels_as == LabelMap([KINDS[kind]]).maps
    assert main(["verify", "like.h5", "--quiet"]) == 0


def identity(kind):
    values = {pair.rpartition("=")[2] for pair in KINDS[kind].split(",")}
    return ",".join(f"{value}={value}" for value in sorted(values, reverse=True))


def test_a_map_follows_that_of_the_file(folder, capsys):
    convert_files(["raw.csv"], "mapped.h5", label="y", labels_as="smurf.=flood,*=other")
    with open_dataset("mapped.h5", labels_as="flood=1,other=0") as source:
        FrankWolfeSVC().fit(source).save("model.h5")
    assert load_model("model.h5").labels_as == ("*=other,smurf.=flood", "flood=1,other=0")
    assert accuracy(capsys, "raw.h5") == accuracy(capsys, "mapped.h5") > 0.6
    # A map that the file has had is not applied again.
    swap = "normal.=smurf.,smurf.=normal.,neptune.=neptune."
    convert_files(["raw.csv"], "swapped.h5", label="y", labels_as=swap)
    with open_dataset("swapped.h5", labels_as=swap) as source:
        assert source.labels_as == LabelMap([swap]).maps
    train("swapped.h5")
    assert accuracy(capsys, "raw.h5") == accuracy(capsys, "swapped.h5") > 0.6


def test_text_has_its_labels_mapped(folder, capsys):
    lines = [f"{k % 3} 1:{k % 3} 2:{k / 60}\n" for k in range(60)]
    (folder / "a.txt").write_text("".join(lines))
    report = convert_files(["a.txt"], "a.h5", labels_as="0.0=none,*=some")
    assert report.class_counts == {"none": 20, "some": 40}
    assert "labels: none (20 rows) from 0 (20); some (40 rows) from 1 (20), 2 (20)" in report.notes
    train("a.h5")
    assert accuracy(capsys, "a.txt") == accuracy(capsys, "a.h5") > 0.9
    with pytest.raises(InputError, match=r"a\.txt .*has the label 2, .*add 2=NEW, or \*=NEW"):
        convert_files(["a.txt"], "b.h5", labels_as="0=none,1=some")


def test_other_words_and_novelty(folder, capsys):
    model = train("words.h5")
    assert model.labels_as == ()
    plain = accuracy(capsys, "words.h5")
    convert_files(["raw.csv"], "other.h5", like="words.h5", labels_as=TWO)
    assert accuracy(capsys, "other.h5") == plain
    train("other.h5")
    assert main(["evaluate", "model.h5", "raw.h5"]) == 0
    said = "attack (84 rows) from neptune. (44), smurf. (40); normal (36 rows) from normal. (36)"
    assert said in capsys.readouterr().err
    train("raw.h5", "--task", "novelty")
    convert_files(["raw.csv"], "novel.h5", like="raw.h5", labels_as="neptune.=new,*=old")
    capsys.readouterr()
    assert main(["evaluate", "model.h5", "novel.h5", "--positive", "new", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"]["new"]["rows"] == 44


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("convert raw.csv x.h5 --label y --labels-as smurf.=2", "raw.csv, .* has the label n"),
        ("convert raw.csv x.h5 --label y --labels-as normal.", "must be LABEL=NEW"),
        ("convert raw.csv x.h5 --label y --labels-as a=1,a=2", "each label once"),
        ("train raw.h5 --labels-as *=1", "unrecognized arguments: --labels-as"),
        ("evaluate mapped.model.h5 raw.h5 --missing-labels drop", "arguments: --missing-labels"),
        ("convert numbers.csv x.h5 --label y --task regression --labels-as *=1", "for classes"),
        # Under the map of the model, rows of 1 would silently become -1.
        ("evaluate mapped.model.h5 numbers.h5", "label 1, a new one of --labels-as"),
    ],
)
def test_what_is_not_clear_is_refused(folder, capsys, command, said):
    convert_files(["raw.csv"], "mapped.h5", label="y", labels_as=KINDS["numbers"])
    if "mapped.model" in command:
        assert main(["train", "mapped.h5", "--quiet"]) == 0
    capsys.readouterr()
    assert main(command.split()) == 2
    assert re.search(said, capsys.readouterr().err)


def test_files_of_other_maps_stay_as_they_are_and_that_is_said(folder, caplog, capsys):
    convert_files(["raw.csv"], "other.h5", label="y", labels_as="normal.=normal,*=novel")
    convert_files(["raw.csv"], "two.h5", label="y", labels_as=TWO)
    train("two.h5")
    assert accuracy(capsys, "other.h5") < 0.5
    assert "not of the model's map" in caplog.text
    with pytest.raises(InputError, match="labels are not of the same --labels-as"):
        open_dataset(["other.h5", "words.h5"])


LABELS = st.sampled_from(["a", "b", "1", "1.0", "-3", "c"])


@given(st.dictionaries(LABELS, LABELS, min_size=1), st.lists(LABELS, min_size=1, max_size=9))
def test_maps_are_dictionaries(new, labels):
    """A slow twin, whose keys are numbers where they can be."""

    def plain(word):
        return word.removesuffix(".0")

    text = ",".join(f"{old}={word}" for old, word in new.items())
    known = {plain(old): plain(word) for old, word in new.items()}
    if len(known) < len(new):
        with pytest.raises(InputError, match="once"):
            LabelMap([text])
    elif not {*map(plain, labels)} <= {*known}:
        with pytest.raises(InputError, match="here has the label"):
            LabelMap([text])(np.array(labels), lambda _: "here")
    else:
        made = LabelMap([text])
        found = made(np.array(labels), str)
        expected = [known[plain(label)] for label in labels]
        are_numbers = {*known.values()} <= {"1", "-3"}
        assert found.tolist() == [float(word) if are_numbers else word for word in expected]
        assert made.counts.total() == len(labels)


def test_python_opens_files_with_a_map(folder):
    with open_dataset("raw.h5", labels_as=TWO) as source:
        model = FrankWolfeSVC().fit(source)
    assert model.classes_.tolist() == ["attack", "normal"]
    assert model.score("raw.h5") > 0.6
    with open_dataset("words.h5", labels_as="attack=attack,normal=normal") as source:
        assert model.score(source) == model.score("raw.h5")


# -- evaluate --by -------------------------------------------------------------------------------


def by(capsys, *arguments):
    capsys.readouterr()
    assert main(["evaluate", "model.h5", *map(str, arguments), "--quiet", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["by"]


def words_of(path):
    return [line.split(",")[-1] for line in path.read_text().splitlines()[1:]]


def recalls(data, truth, words, positive):
    """Rows, recall and share predicted as positive, of each word, from the predictions alone."""
    predicted, words = np.array(load_model("model.h5").predict(data).astype(str)), np.array(words)
    expected = {}
    for word in sorted({*words.tolist()}):
        of = words == word
        shares = {"recall": predicted == truth, "positive": predicted == positive}
        expected[word] = {"rows": int(of.sum())}
        expected[word] |= {name: pytest.approx(each[of].mean()) for name, each in shares.items()}
    return expected


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_recall_by_the_labels_before_and_by_other_columns(folder, capsys, kind):
    """Also where the column is a feature, or one that the model does not know, with gaps."""
    convert_files(["raw.csv"], "mapped.h5", label="y", labels_as=TWO)
    train("mapped.h5")
    lines = (folder / "raw.csv").read_text().splitlines()
    cities = ["", "Rome", "12", "1.50"]
    lines = [f"{line},{cities[k % 4]}" for k, line in enumerate(lines[1:])]
    (folder / "t.csv").write_text("\n".join(["a,b,y,city", *lines, ""]))
    data = folder / f"t.{kind}"
    if kind != "csv":
        frame = pytest.importorskip("pandas").read_csv(folder / "t.csv", dtype={"city": str})
        save = frame.to_parquet if kind == "parquet" else frame.to_feather
        save(data)
    names = words_of(folder / "raw.csv")
    truth = np.where(np.array(names) == "normal.", "normal", "attack")
    found = by(capsys, data, "--by", "y")
    assert found == {"column": "y", "values": recalls(data, truth, names, "normal")}
    found = by(capsys, data, "--by", "city")["values"]
    cities[3] = "1.5"
    assert found == recalls(data, truth, [cities[k % 4] for k in range(120)], "normal")
    assert len(by(capsys, data, "--by", "a")["values"]) > 50
    assert main(["evaluate", "model.h5", str(data), "--by", "city", "--positive", "attack"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^city +rows +recall +positive$", out, re.MULTILINE)
    assert re.search(r"^\(missing\) +30 +", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("data", "options", "parts"),
    [
        ("raw.csv", ["--by", "city"], ["--by: raw.csv has no column 'city'"]),
        ("a.txt", ["--by", "y"], ["columns of a table in a file, not for a.txt"]),
        ("raw.h5", ["--by", "y"], ["columns of a table in a file, not for raw.h5"]),
        ("-", ["--by", "y"], ["columns of a table in a file, not for -"]),
    ],
)
def test_columns_that_are_not_there(folder, capsys, data, options, parts):
    convert_files(["raw.csv"], "mapped.h5", label="y", labels_as=TWO)
    (folder / "a.txt").write_text("1 1:2 2:1\n0 1:3\n")
    convert_files(["a.txt"], "text.h5")
    train("text.h5" if data == "a.txt" else "mapped.h5")
    capsys.readouterr()
    assert main(["evaluate", "model.h5", data, "--quiet", *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert all(part in err for part in parts), err
