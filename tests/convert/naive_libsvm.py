"""Slow, obviously right twins of the converter's parts."""

from __future__ import annotations

import numpy as np


def parse(text: str, index_base: int = 1) -> tuple[np.ndarray, list[dict[int, np.float32]]]:
    """Labels and one dict per row of valid LIBSVM text; zeros are left out."""
    labels, rows = [], []
    for line in text.split("\n"):
        tokens = line.partition("#")[0].split()
        if not tokens:
            continue
        labels.append(float(tokens[0]))
        pairs = [token.split(":") for token in tokens[1:] if not token.startswith("qid:")]
        values = {int(i) - index_base: np.float32(np.float64(value)) for i, value in pairs}
        rows.append({i: value for i, value in sorted(values.items()) if value != 0})
    return np.array(labels), rows


def dense(rows: list[dict[int, np.float32]], n_features: int) -> np.ndarray:
    """Rows of `parse` as an array."""
    X = np.zeros((len(rows), n_features), np.float32)
    for i, row in enumerate(rows):
        for j, value in row.items():
            X[i, j] = value
    return X
