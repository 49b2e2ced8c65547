"""Peak memory of a conversion does not grow with the input."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

SCRIPT = """
import re, sys
from pathlib import Path
from ooc_fw.prep.convert import convert_libsvm
from ooc_fw.prep.spool import shuffle_bits
from ooc_fw.prep.text import TextInput

# Small blocks and buckets, so that a small file is many times larger than they.
TextInput.blocks.__defaults__ = (1 << 18,)
shuffle_bits.__defaults__ = (1 << 19,)
convert_libsvm([sys.argv[1]], sys.argv[2], dense=sys.argv[3] == "dense")
# Not ru_maxrss: that one survives exec, and would report the peak of the test runner.
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
"""


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
