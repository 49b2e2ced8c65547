"""The data that the package carries, against scikit-learn's reader."""

from __future__ import annotations

import lzma
from importlib import resources

import h5py
import numpy as np
from sklearn.datasets import load_svmlight_file

from ooc_fw.convert.convert import convert_libsvm
from ooc_fw.convert.libsvm import iter_libsvm
from ooc_fw.data.rows import concat_rows

DATA = resources.files("ooc_fw.data") / "samples"


def test_parser_equals_scikit_learn():
    for name, n_rows, n_features in (("a1a.xz", 1605, 119), ("a1a.t.xz", 4000, 122)):
        path = DATA / name
        with lzma.open(str(path)) as file:
            X, y = load_svmlight_file(file, dtype=np.float32, zero_based=False)
        blocks = list(iter_libsvm(str(path), block_bytes=10_000))
        rows = concat_rows([block for _, block, _ in blocks])
        assert len(rows) == n_rows
        np.testing.assert_array_equal(np.concatenate([labels for labels, _, _ in blocks]), y)
        assert blocks[-1][1].n_features == n_features == X.shape[1]
        np.testing.assert_array_equal(rows.data, X.data)
        np.testing.assert_array_equal(rows.indices, X.indices)
        np.testing.assert_array_equal(rows.indptr, X.indptr)


def test_test_part_has_features_the_training_part_lacks(tmp_path):
    train, test = tmp_path / "train.h5", tmp_path / "test.h5"
    assert convert_libsvm([str(DATA / "a1a.xz")], train).n_features == 119
    report = convert_libsvm([str(DATA / "a1a.t.xz")], test, like=train)
    assert (report.n_features, report.dropped_features, report.dropped_values) == (119, 3, 7)
    with h5py.File(test) as file:
        assert file["row"][...].tolist() == list(range(4000))
