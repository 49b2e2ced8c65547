"""`ooc-fw train --memory`: the peak that the operating system reports stays below the limit."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from ooc_fw.testing.files import write_dense

N_ROWS, N_FEATURES = 6000, 12


def ooc_fw(*args):
    return subprocess.run(
        [sys.executable, "-m", "ooc_fw.cli.main", *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """Rows of which most become support vectors."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_FEATURES)).astype(np.float32)
    y = np.where(X[:, 0] + 3 * rng.normal(size=N_ROWS) > 0, 1.0, -1.0)
    return write_dense(tmp_path_factory.mktemp("data") / "noisy.h5", X, y)


def test_the_peak_stays_below_the_limit(noisy, tmp_path):
    options = ["--C", "1", "--gamma", "0.05", "--tol", "1e-2"]
    refused = ooc_fw("train", noisy, *options, "--memory", "1MiB", "-o", tmp_path / "no.h5")
    assert refused.returncode == 2
    assert not (tmp_path / "no.h5").exists()
    smallest = int(re.search(r"would do is (\d+)MiB", refused.stderr)[1])

    limit = smallest + 12  # kernel values of all support vectors would take 60 MiB
    model = tmp_path / "model.h5"
    done = ooc_fw(
        "train", noisy, *options, "--memory", f"{limit}MiB", "-o", model, "--json", "--quiet"
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["n_support"] > 4000
    assert result["certified_gap"] <= 1e-2
    assert result["peak_rss_bytes"] <= limit << 20
