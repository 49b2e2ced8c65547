"""Rows for the micro benchmarks, as random as those of real sets are wide."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

BLOCKS = 40
"""Copies of a thousand lines in the text: some ten megabytes."""


@pytest.fixture(scope="session", params=[(22, 22), (300, 12)], ids=["dense", "sparse"])
def text(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LIBSVM text with all of 22 or 12 of 300 values stored."""
    n_features, stored = request.param
    rng = np.random.default_rng(0)
    lines = []
    for label in (-1, 1) * 500:
        columns = np.sort(rng.permutation(n_features)[:stored]) + 1
        lines.append(f"{label} " + " ".join(f"{j}:{rng.random():.6g}" for j in columns) + "\n")
    path: Path = tmp_path_factory.mktemp("micro") / "rows.txt"
    path.write_text("".join(lines) * BLOCKS)
    return path
