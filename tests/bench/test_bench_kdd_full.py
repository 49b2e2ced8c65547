"""The synthetic full KDD Cup 99 set: counts, determinism, and how far values are moved."""

import gzip
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pytest

from bench import datasets, kdd_full

FEATURES = ("duration", "flag=S0", "flag=SF", "src_bytes", "rate")
RAW = [
    "0,SF,1000,0.50,smurf.",
    "0,SF,520,1.00,smurf.",
    "0,SF,520,1.00,smurf.",
    "7,S0,0,0.07,normal.",
    "300,SF,24,0.00,normal.",
    "12,S0,999,0.01,spy.",
]
COUNTS = {"smurf": 3000, "normal": 1000}
REAL = datasets.DEFAULT_DATA


@pytest.fixture
def data(tmp_path) -> Path:
    folder = tmp_path / "data"
    (folder / "kddcup99").mkdir(parents=True)
    lines = [f"{column}\t{name}\n" for column, name in enumerate(FEATURES, 1)]
    (folder / kdd_full.FEATURES).write_text("".join(lines))
    with gzip.open(folder / kdd_full.SAMPLE, "wt") as out:
        out.writelines(f"{line}\n" for line in RAW)
    return folder


def lines_of(generator: kdd_full.Generator, n_rows: int | None = None) -> list[str]:
    return b"".join(bytes(block) for block in generator.blocks(n_rows)).decode().splitlines()


def test_classes_are_drawn_as_often_as_asked_and_the_rest_is_kept(data):
    sample = kdd_full.read_sample(data)
    whole = Counter(lines_of(kdd_full.Generator(sample, counts={})))
    assert whole == {
        "+1 3:1 4:1000 5:0.5": 1,
        "+1 3:1 4:520 5:1": 2,
        "-1 1:7 2:1 5:0.07": 1,
        "-1 1:300 3:1 4:24": 1,
        "+1 1:12 2:1 4:999 5:0.01": 1,
    }
    found = Counter(lines_of(kdd_full.Generator(sample, counts=COUNTS, moved=False)))
    assert (set(found), found.total()) == (set(whole), 4001)
    # The row that stands twice in the sample is drawn twice as often: 2000 of 3000.
    assert abs(found["+1 3:1 4:520 5:1"] - 2000) < 5 * np.sqrt(3000 * 2 / 9)
    assert found["+1 3:1 4:520 5:1"] + found["+1 3:1 4:1000 5:0.5"] == 3000
    assert abs(found["-1 1:7 2:1 5:0.07"] - 500) < 5 * np.sqrt(1000 / 4)


def test_values_move_within_bounds_and_kept_rows_do_not(data):
    lines = lines_of(kdd_full.Generator(kdd_full.read_sample(data), counts=COUNTS))
    seen: dict[str, set[float]] = {}
    for line in lines:
        pairs = dict(pair.split(":") for pair in line.split()[1:])
        row = " ".join(pairs) + (" wide" if float(pairs.get("4", 0)) > 900 else "")
        for column, value in pairs.items():
            seen.setdefault(f"{row} {column}", set()).add(float(value))
    assert seen["3 4 5 wide 4"] == {float(v) for v in range(980, 1001)}  # no more than 1000
    assert seen["3 4 5 wide 5"] == {0.49, 0.5, 0.51}
    assert seen["3 4 5 4"] == {float(v) for v in range(510, 531)}
    assert seen["3 4 5 5"] == {0.99, 1.0}
    assert seen["1 2 5 1"] == {7.0}
    assert seen["1 2 5 5"] == {0.06, 0.07, 0.08}
    assert seen["1 3 4 1"] == {float(v) for v in range(294, 301)}
    assert seen["1 3 4 4"] == {24.0}
    assert seen["1 2 4 5 wide 5"] == {0.01}


@pytest.mark.process
def test_command_writes_text_and_hdf5(data, tmp_path, capfd):
    # The small sample lacks five of the seven classes; the two it has are drawn in full.
    for name in ("some.txt", "some.h5"):
        options = ["kdd-full", "-o", str(tmp_path / name), "--rows", "2000"]
        assert datasets.main([*options, "--data", str(tmp_path)]) == 1
        assert "features.txt does not exist" in capfd.readouterr().err
        assert not (tmp_path / name).exists()
        assert datasets.main([*options, "--data", str(data)]) == 0
    assert len((tmp_path / "some.txt").read_text().splitlines()) == 2000
    with h5py.File(tmp_path / "some.h5") as file:
        assert file["X"].shape == (2000, 5)
        assert (file["X"][...].min(), file["X"][...].max()) == (0, 1)
