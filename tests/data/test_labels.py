"""Label values and their codes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.data import labels as labels_module
from ooc_fw.data.labels import (
    are_numbers,
    encode_labels,
    feature_places,
    iter_labels,
    label_values,
    read_targets,
)
from ooc_fw.data.opening import open_source
from ooc_fw.system.errors import InputError


def test_labels_of_any_type():
    for labels in ([3, -7, 3], [1.5, 0.5, 1.5], [True, False, True], ["b", "a", "b"]):
        classes, codes = encode_labels(open_source(np.eye(3), labels))
        assert classes.tolist() == sorted(set(labels))
        assert codes.tolist() == [1, 0, 1]


@given(
    labels=st.lists(st.sampled_from([-1.5, 0.0, 7.0, 8.0, 9.0, 11.0]), min_size=1, max_size=20),
    part=st.integers(1, 5),
)
def test_against_definition(labels, part):
    source = open_source(np.eye(len(labels)), np.array(labels))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labels_module, "_FIRST_LABELS", part)
        patch.setattr(labels_module, "LABEL_BYTES", part)
        names = sorted(set(labels))
        if len(names) == 1:
            with pytest.raises(InputError, match=r"have the label"):
                encode_labels(source)
            return
        classes, codes = encode_labels(source)
    assert classes.tolist() == names
    assert codes.tolist() == [names.index(label) for label in labels]


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_whole_numbers_that_float64_merges(kind):
    labels = np.array([2**53, 2**53 + 1, 7, 2**62 + 1], dtype=kind)
    with pytest.raises(InputError, match=f"row 1 of array: label {2**53 + 1} is a whole number"):
        encode_labels(open_source(np.eye(4), labels))
    encode_labels(open_source(np.eye(2), np.array([2**53, 2**53 + 2], dtype=kind)))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "array has no labels"),
        ([2] * 5, "all rows of array have the label 2"),
        ([1, 0, np.nan, 1, 1], r"row 2 of array is missing \(NaN\)"),
        ([1, 0, 1, 1, np.inf], "row 4 of array is infinite"),
        ([np.nan, 0, 1, 1, 1], r"row 0 of array is missing \(NaN\)"),
        ([b"a", b"\xe9", b"a", b"a", b"a"], r"label b'\\xe9' of row 1 of array is not UTF-8 text"),
        (["a", "\udce9", "a", "a", "a"], r"label '\\udce9' of row 1 of array is not UTF-8 text"),
        (np.arange(300) / 7, "array has more than 256 different labels"),
        (np.array(["a", "b", None, "a", "b"], dtype=object), "labels are of several types"),
    ],
)
def test_unusable_labels(labels, message, monkeypatch):
    monkeypatch.setattr(labels_module, "_FIRST_LABELS", 2)
    monkeypatch.setattr(labels_module, "LABEL_BYTES", 16)
    source = open_source(np.eye(5 if labels is None else len(labels)), labels)
    with pytest.raises(InputError, match=message):
        encode_labels(source)


def test_words_are_no_targets():
    """A word is shown as it stands in the file, not as numpy represents it."""
    with pytest.raises(InputError, match=r"array are words, and a regression"):
        read_targets(open_source(np.eye(2), np.array(["T", "F"])))


def test_words_are_read_in_blocks_of_bytes(monkeypatch):
    """Long words in fewer rows, after a first block that tells how long they are."""
    words = np.array([f"{k % 3:0>1000}" for k in range(5000)])
    source = open_source(np.eye(5000, 1), words)
    monkeypatch.setattr(labels_module, "LABEL_BYTES", 400_000)
    lengths = [len(labels) for _, labels in iter_labels(source)]
    assert (lengths[0], set(lengths[1:-1]), sum(lengths)) == (1024, {100}, 5000)
    assert label_values(source).tolist() == sorted(set(words.tolist()))


NAMES = st.lists(st.sampled_from(["a", "b", "c", "0", "1", "2"]), min_size=1, max_size=4)


@given(NAMES | st.none(), NAMES | st.none())
def test_columns_are_the_features_or_it_is_said(own, features):
    """Only equal names, and numbers, are matched by position without a word."""
    said = []
    both = own is not None and features is not None
    try:
        places = feature_places(own, features, "it", lambda *message: said.append(message))
    except InputError:
        assert both
        assert (
            set(features) - set(own) or len({*own}) < len(own) or len({*features}) < len(features)
        )
        return
    if places is not None:
        assert [own[place] for place in places] == features
        assert len(said) == (len(own) > len(features))
    elif both and own != features:
        assert are_numbers(own) or are_numbers(features)
        assert not {*own} & {*features}
        assert len(said) == (not (are_numbers(own) and are_numbers(features)))
    elif both:
        assert said == []
    else:
        named = [names for names in (own, features) if names is not None]
        assert len(said) == any(not are_numbers(names) for names in named)


def test_names_in_messages():
    said = []

    def warn(message, *values):
        said.append(message % values)

    assert feature_places(["a", "b", "c", "d"], None, "rows", warn) is None
    assert feature_places(None, ["a"], "rows", warn) is None
    assert feature_places(["x", "b", "a"], ["a", "b"], "rows", warn).tolist() == [2, 1]
    by_position = "columns are matched by their position"
    assert said == [
        f"no names of features in the training data, unlike rows (a, b, c, ...): {by_position}",
        f"no names of features in rows, unlike the training data (a): {by_position}",
        "rows has 1 features that the training data do not have (x); they are left out",
    ]
    for own, message in (
        (["a", "c"], r"rows lacks 1 of the 2 features .* \(b\); give rows"),
        (["b", "a", "a"], r"or others first, and .* twice"),
    ):
        with pytest.raises(InputError, match=message):
            feature_places(own, ["a", "b"], "rows")
