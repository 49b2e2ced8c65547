"""Arrays of narrow types keep their type on disk, and rows may be divided by their norms."""

import h5py
import numpy as np
import pytest
import scipy.sparse
from sklearn.preprocessing import Normalizer

from ooc_fw import FrankWolfeSVC, InputError, convert, load_model, open_dataset
from ooc_fw.conversion.verify import verify_file
from ooc_fw.conversion.writer import write_parts
from ooc_fw.data.scaling import Scaling
from tests.conversion.converted import write_npy
from tests.support.contracts import to_dense
from tests.support.methods import grid

OPTIONS = [
    {},
    {"scale": "maxabs", "compression": "gzip"},
    {"scale": "standard"},
    {"scale": "minmax", "normalize": True, "shuffle": False},
    {"normalize": True, "sparse": True},
    {"scale": "maxabs", "sparse": True},
]
NARROW = [("u1", options) for options in OPTIONS]
NARROW += [(dtype, OPTIONS[k]) for k, dtype in enumerate(["i1", ">u2", "i2", "f2", "f2", "i2"])]


def counts(n_rows=500, n_features=7, seed=0, share=0.5):
    """Whole numbers, of which a `share` is not zero, and labels; the last row is all zeros."""
    rng = np.random.default_rng(seed)
    X = rng.integers(1, 100, (n_rows, n_features)) * (rng.random((n_rows, n_features)) < share)
    X[-1] = 0
    return X, (X[:, 0] > X[:, 1]).astype(np.int64)


def write_h5ad(path, X, y):
    """Write sparse rows as AnnData has them."""
    with h5py.File(path, "w") as file:
        matrix = scipy.sparse.csr_array(X.astype(np.float64))
        file["X/data"] = matrix.data.astype(X.dtype)
        file["X/indices"] = matrix.indices
        file["X/indptr"] = matrix.indptr
        file["X"].attrs["shape"] = X.shape
        file["y"] = y
    return path


def rows_of(path):
    with open_dataset(path) as source:
        return to_dense(source.read(0, source.n_rows))


def stored(path):
    with h5py.File(path) as file:
        X = file["X"]
        return X["data"].dtype if isinstance(X, h5py.Group) else X.dtype


@pytest.mark.parametrize(("dtype", "options"), grid(NARROW, 6))
def test_rows_and_facts_equal_those_of_float32(tmp_path, monkeypatch, dtype, options):
    """Also in parts, for later rows, and in a file that is opened again by another process."""
    if dtype == "f2":  # many chunks, each of several stretches
        monkeypatch.setattr("ooc_fw.conversion.writer.CHUNK_BYTES", 400)
        monkeypatch.setattr("ooc_fw.data.converted.STRETCH_BYTES", 100)
    X, y = counts()
    options = dict(options)
    sparse = options.pop("sparse", False)
    files = {}
    for name, kind in (("narrow", dtype), ("wide", "f4")):
        if sparse:
            inputs = [write_h5ad(tmp_path / f"{name}.h5ad", X.astype(kind), y)]
            inputs_of = {"dense": False}
        else:
            inputs = [write_npy(tmp_path / f"{name}.npy", X.astype(kind))]
            inputs_of = {"labels": write_npy(tmp_path / "y.npy", y)}
        files[name] = tmp_path / f"{name}.h5"
        convert(inputs, files[name], **inputs_of, **options)
        later = write_npy(tmp_path / "later.npy", (X[:50] // 2).astype(kind))
        convert([later], tmp_path / f"{name}_later.h5", like=files[name])
        with open_dataset(files[name]) as source:
            parts = [tmp_path / f"{name}_{part}.h5" for part in ("train", "test")]
            write_parts(source, np.arange(0, 500, 3), parts)
    assert stored(files["narrow"]) == np.dtype(dtype).newbyteorder("=")
    assert stored(files["wide"]) == np.float32
    for part in ("", "_later", "_train", "_test"):
        narrow, wide = (tmp_path / f"{name}{part}.h5" for name in ("narrow", "wide"))
        assert stored(narrow) == stored(files["narrow"])
        verify_file(narrow)
        np.testing.assert_array_equal(rows_of(narrow), rows_of(wide))
        with open_dataset(narrow) as one, open_dataset(wide) as other:
            assert one.scaling.same_as(other.scaling)
            np.testing.assert_array_equal(one.statistics.mean, other.statistics.mean)
            assert one.statistics.mean_square_norm == other.statistics.mean_square_norm
            assert (one.sparse, one.shuffled) == (other.sparse, other.shuffled)
            function, arguments = one.__reduce__()
            again = function(*arguments)
            np.testing.assert_array_equal(to_dense(again.read(3, 9)), to_dense(other.read(3, 9)))


def test_parts_have_the_labels_that_are_given(tmp_path):
    X, y = counts()
    inputs = [write_npy(tmp_path / "X.npy", X.astype(np.uint8))]
    labels = write_npy(tmp_path / "y.npy", y)
    convert(inputs, tmp_path / "X.h5", labels=labels, scale="standard")
    others = 5 + np.arange(len(y)) % 3
    with open_dataset(tmp_path / "X.h5", others) as source:
        write_parts(source, np.arange(100), [tmp_path / "train.h5", tmp_path / "test.h5"])
        expected = source.labels(0, 500)
    for part, own in (("test", expected[:100]), ("train", expected[100:])):
        with open_dataset(tmp_path / f"{part}.h5") as found:
            np.testing.assert_array_equal(found.labels(0, len(own)), own)


def test_the_file_is_as_small_as_its_input(tmp_path):
    """Rows of bytes stay dense unless sparse rows take less than half as much."""
    for share, is_sparse in ((0.2, False), (0.05, True)):
        X, _ = counts(4000, 784, share=share)
        inputs = write_npy(tmp_path / "X.npy", X.astype(np.uint8))
        y = write_npy(tmp_path / "y.npy", np.arange(4000) % 2)
        report = convert([inputs], tmp_path / "X.h5", labels=y, scale="maxabs")
        assert report.sparse == is_sparse
        # Beside the rows are labels and their numbers; the last chunk is stored whole.
        extra = 4000 * 16 + (600 << 10)
        assert (tmp_path / "X.h5").stat().st_size < inputs.stat().st_size + extra


def test_types_that_do_not_stay(tmp_path):
    """Inputs of several types take one that holds all; logarithms are stored."""
    X, _ = counts()
    names = [write_npy(tmp_path / f"{kind}.npy", X.astype(kind)) for kind in ("u1", "u2", "f2")]
    y = {"task": "novelty"}
    for inputs, options, expected in (
        (names[:2], {}, np.uint16),
        (names[1:], {}, np.float32),
        (names[:1], {"log1p": True}, np.float32),
    ):
        for name in inputs:
            with h5py.File(name.with_suffix(".h5"), "w") as file:
                file["X"] = np.load(name)
                file["y"] = np.ones(len(X))
        convert([one.with_suffix(".h5") for one in inputs], tmp_path / "o.h5", **options, **y)
        assert stored(tmp_path / "o.h5") == expected


def test_a_model_divides_raw_rows(tmp_path):
    """The model keeps it in its file, and gives it to later files; other files do not fit."""
    X, y = counts()
    raw = write_npy(tmp_path / "X.npy", X.astype(np.float32))
    labels = write_npy(tmp_path / "y.npy", y)
    report = convert([raw], tmp_path / "X.h5", labels=labels, normalize=True)
    assert "4 rows hold only zeros; --normalize leaves them so" in report.notes
    FrankWolfeSVC(C=5, random_state=0).fit(tmp_path / "X.h5").model_.save(tmp_path / "m.model")
    model = load_model(tmp_path / "m.model")
    assert model.scaling.normalize
    unit = Normalizer().transform(X)
    wanted = FrankWolfeSVC(C=5, gamma=model.kernel.gamma).fit(unit, y)
    with open_dataset(raw) as source:
        found = model.decision_function(source)
    np.testing.assert_allclose(found, wanted.decision_function(unit), atol=0.2)
    np.testing.assert_array_equal(model.decision_function(3 * X.astype(np.float32)), found)
    with open_dataset(tmp_path / "X.h5") as source:
        order = source.row_ids(0, 500)  # a certificate needs the rows in the order of training
    gap = model.certify(X[order].astype(np.float32), y[order]).certified_gap
    assert gap == model.certify(tmp_path / "X.h5").certified_gap
    convert([raw], tmp_path / "like.h5", like=tmp_path / "X.h5")
    np.testing.assert_array_equal(rows_of(tmp_path / "like.h5")[order], rows_of(tmp_path / "X.h5"))
    convert([raw], tmp_path / "other.h5", labels=labels)
    with (
        open_dataset(tmp_path / "other.h5") as other,
        pytest.raises(InputError, match=r"scaled \(none\) in another way .* \(rows of norm 1\)"),
    ):
        model.predict(other)


def test_norms_over_other_columns_are_refused(tmp_path):
    text = "a,b,c,y\n" + "".join(f"{k % 3},{k % 4},{k % 5},{k % 2}\n" for k in range(40))
    (tmp_path / "three.csv").write_text(text)
    convert([tmp_path / "three.csv"], tmp_path / "three.h5", label="y", normalize=True)
    convert([tmp_path / "three.csv"], tmp_path / "two.h5", label="y", drop="b", normalize=True)
    own = FrankWolfeSVC(kernel="linear").fit(tmp_path / "two.h5")
    with (
        open_dataset(tmp_path / "three.h5") as source,
        pytest.raises(InputError, match="norms over 3 features, and the model has 2"),
    ):
        own.model_.predict(source)
    with pytest.raises(InputError, match="--normalize does not go with --target-encode"):
        convert(["a.csv"], tmp_path / "x.h5", normalize=True, target_encode="a")
    with pytest.raises(InputError, match="--normalize comes from"):
        convert(["a.csv"], tmp_path / "x.h5", normalize=True, like="two.h5")
    huge = np.full((1, 2), 1e200)
    with pytest.raises(InputError, match="the norm of a row is beyond float64"):
        Scaling(normalize=True).apply(huge, 2)
