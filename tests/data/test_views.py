"""Sources made of other sources: subsets, pairs, scaled rows and kept rows."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import ooc_fw
from ooc_fw.data.opening import open_dataset
from ooc_fw.data.views import PairSource, cached, draw_parts
from ooc_fw.system.errors import InputError
from tests.support.contracts import small_table, to_dense
from tests.support.files import write_dense


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    shares=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    shuffled=st.booleans(),
    by_class=st.booleans(),
    seed=st.integers(0, 5),
)
def test_parts_share_no_row_and_may_have_the_same_share_of_each_class(
    counts, shares, shuffled, by_class, seed
):
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    n = len(codes)
    sizes = [share * n // (sum(shares) + 5) for share in shares]
    assume(min(sizes) > 0)
    parts = draw_parts(n, sizes, shuffled, rng, codes if by_class else None)
    assert [len(part) for part in parts] == sizes
    assert len(np.unique(np.concatenate(parts))) == sum(sizes)
    for part in parts:
        gaps = np.diff(part)
        assert (gaps > 0).all()
        assert 0 <= part[0] <= part[-1] < n
        if by_class:
            # Each class is off by less than a row at either end, and by the ties of the others.
            found = np.bincount(codes[part], minlength=len(counts))
            assert (np.abs(found - np.array(counts) * len(part) / n) <= 2 + len(counts)).all()
        elif shuffled:
            assert np.count_nonzero(gaps > 1) < 2


def test_split_of_a_shuffled_file_is_contiguous(tmp_path):
    X, y = small_table(), np.arange(57.0)
    path = write_dense(tmp_path / "data.h5", X, y)
    train, test = ooc_fw.train_test_split(path, 0.3, seed=1)
    assert max(np.count_nonzero(np.diff(part.rows) > 1) for part in (train, test)) <= 1
    both = np.concatenate([train.labels(0, 40), test.labels(0, 17)])
    np.testing.assert_array_equal(np.sort(both), y)
    again = ooc_fw.train_test_split(path, 0.3, seed=1)[1]
    np.testing.assert_array_equal(again.rows, test.rows)
    train.close()  # the other part stays open
    np.testing.assert_array_equal(test.read(0, 1), X[test.labels(0, 1).astype(int)])


@given(n_first=st.integers(1, 40), n_second=st.integers(1, 40))
def test_rows_of_a_pair_are_spread_evenly_and_found_again(n_first, n_second):
    first = open_dataset(np.arange(n_first)[:, None])
    second = open_dataset(-1 - np.arange(n_second)[:, None])
    pair = PairSource(first, second, name="pair", shuffled=None)
    n = n_first + n_second
    is_first = pair.is_first(np.arange(n))
    assert np.cumsum(is_first).tolist() == [k * n_first // n for k in range(1, n + 1)]
    values = to_dense(pair.read(0, n))[:, 0]
    assert values[is_first].tolist() == list(range(n_first))
    assert values[~is_first].tolist() == [-1 - k for k in range(n_second)]


def test_rows_that_fit_are_fetched_once(tmp_path):
    X = small_table()
    within = open_dataset(write_dense(tmp_path / "data.h5", X, np.ones(len(X))))
    source = cached(within, X.nbytes)
    for _ in range(3):
        source.read(0, len(X))
        source.take(np.array([1, 4]))
    assert source.rows_read == 3 * (len(X) + 2)
    assert source.bytes_read == X.nbytes
    assert cached(within, X.nbytes - 1) is within


@given(
    sizes=st.lists(st.integers(1, 12), min_size=8, max_size=40),
    n_parts=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_parts_of_groups_hold_whole_groups(sizes, n_parts, seed):
    """They have about the wanted sizes, and about the same share of each class."""
    groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    n = len(groups)
    codes = groups % 2
    wanted = n // (n_parts + 1)
    parts = draw_parts(n, [wanted] * n_parts, True, np.random.default_rng(seed), codes, groups)
    of_parts = [{*groups[part].tolist()} for part in parts]
    assert sum(map(len, of_parts)) == len(set().union(*of_parts)) < len(sizes)
    for part in parts:
        assert np.isin(groups, groups[part]).sum() == len(part)
        assert abs(len(part) - wanted) <= 3 * max(sizes)
        assert abs((codes[part] == 0).sum() - wanted * (codes == 0).mean()) <= 3 * max(sizes)


@pytest.mark.parametrize("given", ["array", "npy", "frame column"])
def test_groups_are_matched_by_the_row_of_the_input(given, tmp_path):
    X = small_table()
    users = np.array([f"u{k % 9}" for k in range(57)])
    path = write_dense(tmp_path / "data.h5", X, np.arange(57.0))
    np.save(tmp_path / "users.npy", users)
    forms = {"array": users, "npy": tmp_path / "users.npy", "frame column": pd.Series(users)}
    train, test = ooc_fw.train_test_split(path, 0.3, groups=forms[given])
    sides = [{*users[part.row_ids(0, part.n_rows)].tolist()} for part in (train, test)]
    assert not sides[0] & sides[1]
    assert len(sides[1]) == 3
    with pytest.raises(InputError, match="57 rows but 9 groups"):
        ooc_fw.train_test_split(path, 0.3, groups=users[:9])
    with pytest.raises(InputError, match=r"group of row \d+ of .* is missing"):
        ooc_fw.train_test_split(path, 0.3, groups=np.where(users == "u3", "", users))
    with pytest.raises(InputError, match="1 groups are too few"):
        ooc_fw.train_test_split(path, 0.3, groups=np.zeros(57))
