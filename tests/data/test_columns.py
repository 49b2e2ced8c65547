from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.data.labels import are_numbers, feature_places
from ooc_fw.system.errors import InputError

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
    with pytest.raises(InputError, match=r"rows lacks 1 of the 2 features .* \(b\); give rows"):
        feature_places(["a", "c"], ["a", "b"], "rows")
    with pytest.raises(InputError, match=r"from column 0 on, and .* twice"):
        feature_places(["b", "a", "a"], ["a", "b"], "rows")
