from __future__ import annotations

import pytest

from ooc_fw.cli.main import main


@pytest.fixture(scope="package")
def sure_model(data_file, tmp_path_factory):
    """A model of `data_file` that gives probabilities."""
    path = tmp_path_factory.mktemp("model") / "sure.h5"
    assert main(["train", str(data_file), "-o", str(path), "--probability", "--quiet"]) == 0
    return path
