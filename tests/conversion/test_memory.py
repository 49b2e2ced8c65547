"""Peak memory of a conversion does not grow with the input."""

import json
import subprocess
import sys

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from tests.conftest import libsvm_lines

# Small blocks and buckets, so that a small file is many times larger than they. Each pair of files
# has a process of its own, as a peak never falls; it is not ru_maxrss, which survives exec and
# would be that of the test runner.
SCRIPT = """
import json, os, re, sys
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # another one may keep what was freed
from pathlib import Path
from ooc_fw.conversion import readers, spool
from ooc_fw import convert

readers.BLOCK_BYTES = 1 << 18
spool.BUCKET_BYTES = 1 << 19
for name, options in json.loads(sys.argv[2]):
    if os.fork() == 0:
        peaks = []
        for size in ("small", "large"):
            path = Path(sys.argv[1], f"{size}-{name}")
            convert(path, path.with_suffix(".h5"), **options)
            status = Path("/proc/self/status").read_text()
            peaks.append(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) // 1024)
        print(name, *peaks, flush=True)
        os._exit(0)
    os.wait()
"""

TABLE = {"label": "c20", "one_hot": ["c0"], "dense": True}
CASES = [
    ("data.txt", {"dense": True}),
    ("data.txt", {"dense": False}),
    ("data.csv", TABLE),
    ("data.parquet", TABLE),
    ("data.hdf5", {"dense": True}),
]


def write_files(folder, size, repeats):
    """20 columns, the first of 9 categories, and a label, `repeats` times over, in every format."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 9, 2000), rng.normal(size=(2000, 19))]).round(6)
    y = (rng.random(2000) < 0.5).astype(float)
    wide = np.zeros((2000, 60))
    wide[:, ::3] = rng.integers(1, 99, X.shape)
    (folder / f"{size}-data.txt").write_text(libsvm_lines(wide, y) * repeats)
    table = np.tile(np.column_stack([X, y]), (repeats, 1))
    with h5py.File(folder / f"{size}-data.hdf5", "w") as file:
        file["X"] = table[:, :-1]
        file["y"] = table[:, -1]
    columns = pa.table({f"c{j}": table[:, j] for j in range(21)})
    csv.write_csv(columns, folder / f"{size}-data.csv")
    # One row group, which the reader must not take whole, of pages that are full in both files.
    path = folder / f"{size}-data.parquet"
    parquet.write_table(
        columns, path, row_group_size=len(table), use_dictionary=False, data_page_size=1 << 16
    )


@pytest.mark.process
def test_peak_does_not_grow_with_the_input(tmp_path):
    write_files(tmp_path, "small", 15)  # enough to fill all caches
    write_files(tmp_path, "large", 45)
    command = [sys.executable, "-c", SCRIPT, tmp_path, json.dumps(CASES)]
    out = subprocess.run(command, capture_output=True, text=True)
    assert out.stderr == ""
    names, *peaks = zip(*map(str.split, out.stdout.splitlines()), strict=True)
    assert list(names) == [name for name, _ in CASES]
    # There are 7 to 11 MB of text or cells more, and up to 14 MB of dense rows.
    growth = dict(zip(map(str, CASES), np.diff(np.array(peaks, int), axis=0)[0], strict=True))
    assert max(growth.values()) < 11, growth
