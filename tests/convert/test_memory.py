"""Peak memory of a conversion does not grow with the input."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

# Small blocks and buckets, so that a small file is many times larger than they. The peak is not
# ru_maxrss: that one survives exec, and would report the peak of the test runner.
SCRIPT = """
import re, sys
from pathlib import Path
from ooc_fw.convert import readers
from ooc_fw.convert.convert import convert
from ooc_fw.convert.passes import shuffle_bits
from ooc_fw.options import ConvertOptions

readers.BLOCK_BYTES = 1 << 18
shuffle_bits.__defaults__ = (1 << 19,)
options = ConvertOptions(**eval(sys.argv[3]))
for path in sys.argv[1:3]:
    convert([path], path + ".h5", options)
    print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
"""


def write_text(path, repeats):
    rng = np.random.default_rng(0)
    rows = "".join(
        f"{i % 2} " + " ".join(f"{j + 1}:{rng.integers(1, 99)}" for j in range(0, 60, 3)) + "\n"
        for i in range(2000)
    )
    path.write_text(rows * repeats)


def write_table(path, repeats):
    """Write 20 columns, the first of 9 categories, and a label, `repeats` times over."""
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.integers(0, 9, 2000), rng.normal(size=(2000, 19))]).round(6)
    labels = (rng.random(2000) < 0.5).astype(float)
    whole = np.column_stack([table, labels])
    if path.suffix == ".csv":
        lines = "\n".join([*(",".join(map(repr, row)) for row in whole.tolist()), ""])
        path.write_text(",".join(map(str, range(21))) + "\n" + lines * repeats)
    elif path.suffix == ".npz":
        np.savez(path, X=np.tile(table, (repeats, 1)), y=np.tile(labels, repeats))
    else:
        pa = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        whole = np.tile(whole, (repeats, 1)).astype(np.float32)
        # One row group: the reader must not take it whole.
        columns = pa.table({str(j): whole[:, j] for j in range(21)})
        parquet.write_table(columns, path, row_group_size=len(whole), use_dictionary=False)


LABEL = {"label": "20", "one_hot": ["0"], "dense": True}


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "repeats", "options"),
    [
        ("data.txt", (60, 240), {"dense": True}),
        ("data.txt", (60, 240), {"dense": False}),
        ("data.csv", (40, 160), LABEL),
        ("data.parquet", (40, 160), LABEL),
        pytest.param("data.npz", (40, 160), {"dense": True}, marks=pytest.mark.long),
    ],
)
def test_peak_does_not_grow_with_the_input(tmp_path, name, repeats, options):
    paths = [tmp_path / f"{number}-{name}" for number in repeats]
    for path, number in zip(paths, repeats, strict=True):
        (write_text if name == "data.txt" else write_table)(path, number)
    command = [sys.executable, "-c", SCRIPT, *paths, repr(options)]
    out = subprocess.run(command, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    peaks = [*map(int, out.stdout.split())]  # in MiB; the smaller file is enough to fill all caches
    # 20 to 40 MB of text or cells more, up to 86 MB of dense rows more.
    assert peaks[1] - peaks[0] < 15, peaks
