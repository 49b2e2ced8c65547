"""``ooc-fw demo``, and ``warm-up``, after which nothing is left to compile."""

import os
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest
from pyarrow import csv, parquet

from ooc_fw.cli.demo import DEMO

WARMED = os.environ.get("OOC_FW_WARMED")


def test_demo_shows_every_command_with_its_result(ooc_fw, tmp_path):
    outcome = ooc_fw("demo", tmp_path / "new").done()
    for command in DEMO.strip().splitlines():
        assert f"$ ooc-fw {command}\n" in outcome.out
    words = outcome.out.split()
    assert float(words[words.index("accuracy") + 1]) > 0.8
    assert (tmp_path / "new" / "predictions.txt").exists()


RUN = """
import sys
from ooc_fw.cli.main import main

for command in sys.argv[1:]:
    status = main(command.split())
    assert status == 0, command
"""


@pytest.fixture
def program(tmp_path):
    """Run commands in a new process, with a place for compiled code of its own.

    It is empty at first, or holds what ``tools/test.sh`` has compiled by the command before.
    """
    cache = tmp_path / "compiled"
    if WARMED is None:
        cache.mkdir(mode=0o700)
    else:
        shutil.copytree(WARMED, cache)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "NUMBA_DISABLE_JIT": "0"}
    how = {"env": environment, "cwd": tmp_path, "text": True, "check": True}

    def run(*commands):
        return subprocess.run([sys.executable, "-c", RUN, *commands], capture_output=True, **how)

    return run


def write_data(folder):
    """Dense rows of two classes, text of 60 classes, and a table, also as Parquet."""
    X = np.random.default_rng(0).normal(size=(600, 6)).astype(np.float32)
    with h5py.File(folder / "two.h5", "w") as file:
        file["X"], file["y"] = X, (X[:, 0] * X[:, 1] > 0).astype(float)
    text = "".join(f"{k % 60} 1:{row[0]} {2 + k % 9}:{row[1]}\n" for k, row in enumerate(X))
    (folder / "many.txt").write_text(text)
    rows = "\n".join(f'"{a:.3f}","{b:.3f}","{"no" if a * b > 0 else "yes"}"' for a, b, *_ in X)
    (folder / "t.csv").write_text(f"a,b,y\n{rows}\n")
    parquet.write_table(csv.read_csv(folder / "t.csv"), folder / "t.parquet")


COMMANDS = (
    "demo files",
    "train files/train.h5 -o model.h5 --C 10 --landmarks 100 --threads 2",
    "info two.h5",
    "info t.csv",
    "convert t.csv t.h5 --label y --scale standard",
    "convert t.parquet p.h5 --label y",
    "convert many.txt many.h5 --dense",
    "train many.h5 -o many.model",
    "predict many.model many.h5 -o predictions.txt",
    "convert many.txt sparse.h5",
    "train sparse.h5 -o sparse.model --C 10",
    "predict sparse.model sparse.h5 -o predictions.txt",
    "predict sparse.model many.txt -o predictions.txt",
    "certify sparse.model sparse.h5",
    "train two.h5 -o fw.model --method fw --max-iter 50",
    "train two.h5 -o kept.model --method fw --lmo sampled --no-certify --max-iter 50",
    "train two.h5 -o linear.model --kernel linear --max-iter 50",
)


# Compiling all takes a minute, unless it has been done ahead.
@(pytest.mark.long if WARMED is None else pytest.mark.process)
def test_nothing_is_compiled_after_warm_up(program, tmp_path):
    if WARMED is None:
        first = program("warm-up")
        word, count = first.stdout.split()[:2]
        assert (word, int(count) > 50) == ("compiled", True)
        assert str(tmp_path / "compiled") in first.stdout
    again = program("warm-up")
    assert again.stdout.split()[:2] == ["compiled", "0"]
    write_data(tmp_path)
    kept = {path.name for path in (tmp_path / "compiled").rglob("*.nbc")}
    program(*COMMANDS)
    assert {path.name for path in (tmp_path / "compiled").rglob("*.nbc")} == kept
