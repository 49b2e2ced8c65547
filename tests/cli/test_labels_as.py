"""``--labels-as``: new labels at conversion, recorded in the file."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import InputError, load_model
from ooc_fw.data.labels import label_map, new_labels
from tests.convert.converted import convert_files

WORDS = ("normal.", "smurf.", "neptune.")
KINDS = {"words": "normal.=normal,*=attack", "numbers": "normal.=1,*=-1"}
KINDS["three"] = "smurf.=7,normal.=0,neptune.=x"


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


@pytest.mark.parametrize("kind", KINDS)
def test_map_then_train_is_train_on_mapped_data(ooc_fw, folder, kind):
    convert_files(["raw.csv"], "mapped.h5", label="y", labels_as=KINDS[kind])
    convert_files(["raw.csv"], "like.h5", like="mapped.h5")  # it has the map of the file
    for data in (f"{kind}.h5", "mapped.h5"):
        ooc_fw("train", data, "-o", f"{data}.model", "--C", 3, "--quiet").done()
    expected, model = load_model(f"{kind}.h5.model"), load_model("mapped.h5.model")
    assert model.classes.tolist() == expected.classes.tolist()
    np.testing.assert_array_equal(model.support_vectors, expected.support_vectors)
    results = [
        ooc_fw("evaluate", "mapped.h5.model", data, "--json").json()
        for data in (f"{kind}.h5", "mapped.h5", "like.h5")
    ]
    assert results[0]["accuracy"] == results[1]["accuracy"] == results[2]["accuracy"]
    ooc_fw("verify", "like.h5").done()


def test_text_has_its_labels_mapped(folder):
    lines = [f"{k % 3} 1:{k % 3} 2:{k / 60}\n" for k in range(60)]
    (folder / "a.txt").write_text("".join(lines))
    report = convert_files(["a.txt"], "a.h5", labels_as="0.0=none,*=some")
    assert report.class_counts == {"none": 20, "some": 40}
    with pytest.raises(InputError, match=r"a\.txt .*has the label 2; .* as 2=NEW"):
        convert_files(["a.txt"], "b.h5", labels_as="0=none,1=some")


def test_no_new_label_means_a_missing_one():
    with pytest.raises(InputError, match="means a missing label"):
        label_map("a=NA,*=b")


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
            label_map(text)
    elif not {*map(plain, labels)} <= {*known}:
        with pytest.raises(InputError, match="here has the label"):
            new_labels(labels, label_map(text), "here")
    else:
        found = new_labels(labels, label_map(text), "here")
        assert found == [known[plain(label)] for label in labels]
