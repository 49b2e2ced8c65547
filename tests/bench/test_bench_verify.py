"""The brute force agrees with definitions and with our certificates."""

import h5py
import numpy as np
import pytest
import scipy.sparse

from bench import verify
from bench.verify import model_gaps
from ooc_fw.cli.main import main
from tests.support.files import write_dense


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_matrix])
def test_gaps_are_those_of_the_whole_matrix(table, monkeypatch, form):
    monkeypatch.setattr(verify, "BLOCK_VALUES", 64)
    X, y = table.X[:20].astype(float), np.where(table.y[:20] > 0, 1.0, -1.0)
    kernel = np.array([[np.exp(-0.3 * np.sum((a - b) ** 2)) for b in X] for a in X])
    Q = np.outer(y, y) * (kernel + 1) + np.eye(20) / 5
    support, alpha = np.arange(0, 20, 2), np.full(10, 0.1)
    gradient = Q[:, support] @ alpha
    rho = alpha @ gradient[support]
    gaps = verify.squared_hinge_gaps(form(X), y, support, alpha, C=5, gamma=0.3)
    assert gaps.relative == pytest.approx(1 - gradient.min() / rho)
    assert gaps.pair == pytest.approx((gradient[support].max() - gradient.min()) / rho)


def test_a_certificate_of_ours_is_confirmed(data_file, model_file, capsys):
    gaps, stated = model_gaps(model_file, data_file)
    assert stated == pytest.approx(gaps.relative, rel=0.01, abs=1e-6)
    assert verify.main([str(model_file), str(data_file)]) == 0
    assert "certified gap in the model" in capsys.readouterr().out


def test_a_model_of_other_rows_is_refused(data_file, model_file, tmp_path):
    other = tmp_path / "other.h5"
    other.write_bytes(data_file.read_bytes())
    with h5py.File(other, "r+") as file:
        file["y"][:] = file["y"][:][::-1]
    with pytest.raises(ValueError, match="are not those of its rows"):
        model_gaps(model_file, other)


@pytest.mark.process
def test_certificates_of_many_classifiers_are_confirmed(table, tmp_path):
    codes = np.arange(len(table.y)) % 6
    data, model = write_dense(tmp_path / "d.h5", table.X, codes.astype(float)), tmp_path / "m.h5"
    assert main(["train", str(data), "-o", str(model), "--gamma", "0.5", "--quiet"]) == 0
    gaps, stated = model_gaps(model, data)
    assert stated == pytest.approx(gaps.relative, rel=0.01, abs=1e-6)
