"""Peak memory of a conversion does not grow with the input."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

SCRIPT = """
import re, sys
from pathlib import Path
from ooc_fw.convert import readers
from ooc_fw.convert.convert import convert_libsvm
from ooc_fw.convert.spool import shuffle_bits

# Small blocks and buckets, so that a small file is many times larger than they.
readers.BLOCK_BYTES = 1 << 18
shuffle_bits.__defaults__ = (1 << 19,)
convert_libsvm([sys.argv[1]], sys.argv[2], dense=sys.argv[3] == "dense")
# Not ru_maxrss: that one survives exec, and would report the peak of the test runner.
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
"""


TABLE_SCRIPT = """
import re, sys
from pathlib import Path
from ooc_fw.convert import readers
from ooc_fw.convert.convert import convert
from ooc_fw.convert.spool import shuffle_bits
from ooc_fw.options import ConvertOptions

readers.BLOCK_BYTES = 1 << 18
shuffle_bits.__defaults__ = (1 << 19,)
label = sys.argv[3] or None
hot = ["0"] if label else []
convert([sys.argv[1]], sys.argv[2], ConvertOptions(label=label, one_hot=hot, dense=True))
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
"""


def write_table(kind, path, repeats):
    """Write 20 columns, the first of 9 categories, and a label, `repeats` times over."""
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.integers(0, 9, 2000), rng.normal(size=(2000, 19))]).round(6)
    labels = (rng.random(2000) < 0.5).astype(float)
    if kind == "csv":
        lines = [
            ",".join(map(repr, [*row, label]))
            for row, label in zip(table.tolist(), labels.tolist(), strict=True)
        ]
        with open(path, "w") as file:
            file.write(",".join(map(str, range(21))) + "\n")
            file.writelines("\n".join([*lines, ""]) for _ in range(repeats))
    elif kind == "npz":
        np.savez(path, X=np.tile(table, (repeats, 1)), y=np.tile(labels, repeats))
    else:
        pa = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        whole = np.tile(np.column_stack([table, labels]), (repeats, 1)).astype(np.float32)
        # One row group: the reader must not take it whole.
        columns = pa.table({str(j): whole[:, j] for j in range(21)})
        parquet.write_table(columns, path, row_group_size=len(whole), use_dictionary=False)


@pytest.mark.parametrize("kind", ["csv", "parquet", pytest.param("npz", marks=pytest.mark.long)])
def test_peak_does_not_grow_with_a_table(tmp_path, kind):
    peaks = []
    for repeats in (40, 160):
        path = tmp_path / f"data.{kind}"
        write_table(kind, path, repeats)
        label = "" if kind == "npz" else "20"
        out = subprocess.run(
            [sys.executable, "-c", TABLE_SCRIPT, str(path), str(tmp_path / "out.h5"), label],
            capture_output=True,
            text=True,
        )
        assert out.returncode == 0, out.stderr
        peaks.append(int(out.stdout))
    # 20 to 40 MB of cells more, as much of output.
    assert peaks[1] - peaks[0] < 15, peaks


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_peak_does_not_grow_with_the_input(tmp_path, storage):
    rng = np.random.default_rng(0)
    rows = "".join(
        f"{i % 2} " + " ".join(f"{j + 1}:{rng.integers(1, 99)}" for j in range(0, 60, 3)) + "\n"
        for i in range(2000)
    )
    peaks = []  # in MiB; the smaller file is enough to fill all caches
    for repeats in (60, 240):
        path = tmp_path / "data.txt"
        path.write_text(rows * repeats)
        out = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(path), str(tmp_path / "out.h5"), storage],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(out.stdout))
    # 40 MB of text more, 86 MB of dense rows more.
    assert peaks[1] - peaks[0] < 15
