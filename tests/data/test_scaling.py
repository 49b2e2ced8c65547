import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ooc_fw.data.rows import CSRRows
from ooc_fw.data.scaling import Scaling
from ooc_fw.system.errors import InputError

SCALED = Scaling("minmax", False, np.array([0.0, 1.0, 0.0]), np.array([2.0, 0.5, 0.0]))
STAYS_SPARSE = Scaling("maxabs", True, np.zeros(3), np.array([2.0, 0.5, 0.0]))
ALL = [Scaling(), Scaling("none", True), SCALED, STAYS_SPARSE]


def as_dense(rows) -> np.ndarray:
    return rows.toarray() if isinstance(rows, CSRRows) else rows


def naive(scaling: Scaling, dense: np.ndarray) -> np.ndarray:
    values = dense.astype(np.float64)
    if scaling.log1p:
        values = np.log1p(values)
    if scaling.offset is not None:
        values = (values - scaling.offset) * scaling.factor
    return values.astype(np.float32)


@pytest.mark.parametrize("scaling", ALL)
@given(
    dense=arrays(np.float32, st.tuples(st.integers(0, 5), st.just(3)), elements=st.integers(0, 9))
)
def test_dense_and_sparse_rows_equal_the_formula(scaling, dense):
    expected = naive(scaling, dense)
    before = dense.copy()
    for rows in (dense, CSRRows.from_dense(dense)):
        applied = scaling.apply(rows, 3)
        assert as_dense(applied).dtype == np.float32
        np.testing.assert_array_equal(as_dense(applied), expected)
    np.testing.assert_array_equal(dense, before)
    assert isinstance(scaling.apply(CSRRows.from_dense(dense), 3), np.ndarray) == scaling.moves_zero


@pytest.mark.parametrize("width", [1, 2, 3, 4, 6])
def test_wide_columns_are_dropped_and_missing_ones_are_raw_zeros(width):
    dense = np.arange(1, 2 * width + 1, dtype=np.float32).reshape(2, width)
    fitted = np.zeros((2, 3), np.float32)
    fitted[:, : min(3, width)] = dense[:, :3]
    for rows in (dense, CSRRows.from_dense(dense)):
        np.testing.assert_array_equal(as_dense(SCALED.apply(rows, 3)), naive(SCALED, fitted))
    assert SCALED.zero_row(3).tolist() == [0, -0.5, 0]
    assert not np.signbit(STAYS_SPARSE.zero_row(3)).any()


@pytest.mark.parametrize("scaling", ALL)
def test_written_scaling_is_read_back(tmp_path, scaling):
    with h5py.File(tmp_path / "file.h5", "w") as file:
        assert Scaling.read(file) is None
        scaling.write(file)
        again = Scaling.read(file)
        assert again is not None
        assert again.same_as(scaling)
        assert all(again.same_as(other) == (other is scaling) for other in ALL)
        if scaling.factor is not None:
            del file["scaling/factor"]
            with pytest.raises(InputError, match=rf"says scaling '{scaling.kind}'"):
                Scaling.read(file)
        file.attrs["scaling"] = "standard+learned"
        with pytest.raises(InputError, match="scaling"):
            Scaling.read(file)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("best",), "scaling must be one of none, minmax, maxabs, standard, not 'best'"),
        (("minmax",), "does not fit"),
        (("none", False, np.zeros(1), np.zeros(1)), "does not fit"),
        (("minmax", False, np.zeros(1), np.zeros(2)), "does not fit"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        Scaling(*arguments)


@pytest.mark.parametrize("convert", [CSRRows.from_dense, np.asarray])
@pytest.mark.parametrize(
    ("scaling", "row", "message"),
    [
        (STAYS_SPARSE, [1, -1, 0], "log1p needs values above -1, but the data hold -1"),
        (Scaling("maxabs", False, np.zeros(3), np.full(3, 1e40)), [1, 0, 0], "is beyond float32"),
    ],
)
def test_values_that_cannot_be_scaled(convert, scaling, row, message):
    rows = convert(np.array([row], np.float32))
    with pytest.raises(InputError, match=message):
        scaling.apply(rows, 3)
    with pytest.raises(InputError, match="the scaling is for 3 features, not for 4"):
        scaling.apply(rows, 4)


def test_last_bits_make_no_other_scaling():
    assert not SCALED.same_as(STAYS_SPARSE)
    assert not SCALED.same_as(Scaling())
    one = Scaling("standard", False, np.array([1.6e15, 3.0]), np.array([0.03, 2.0]))
    up = [np.nextafter(numbers, np.inf) for numbers in (one.offset, one.factor)]
    assert one.same_as(Scaling("standard", False, *up))
    assert not one.same_as(Scaling("standard", False, one.offset, one.factor * (1 + 1e-7)))
    assert not one.same_as(Scaling("standard", False, one.offset + [0, 1e-7], one.factor))
