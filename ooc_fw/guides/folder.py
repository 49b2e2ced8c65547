"""A folder of Parquet files: a classifier within 1 GiB of memory, and predictions of new rows.

    python -m ooc_fw.guides.folder [FOLDER LABEL NEW.parquet]

All columns but LABEL are numbers, some of which may be missing. Without a folder, four files of
sensors are made up, and new rows. Results go to the current folder.
"""

import shlex
import sys
from pathlib import Path

import numpy as np

from ooc_fw.cli.guide import run_commands

if not sys.argv[1:]:
    try:
        from pyarrow import parquet, table
    except ImportError:
        sys.exit("these files are made by pyarrow, which is not installed: pip install pyarrow")
    Path("parts").mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for name in ("parts/0", "parts/1", "parts/2", "parts/3", "new"):
        X = rng.normal(size=(2000, 4))
        radius = np.hypot(X[:, 0], X[:, 1]) + 0.05 * rng.normal(size=2000)
        X[rng.random(X.shape) < 0.01] = np.nan
        seen = np.where(radius < 1.2, "near", "far")
        columns = {f"sensor {k}": X[:, k] for k in range(4)} | {"seen": seen}
        parquet.write_table(table(columns), f"{name}.parquet")
folder, label, new = map(shlex.quote, sys.argv[1:4] or ("parts", "seen", "new.parquet"))
commands = f"""
info {folder} --label {label}
convert {folder} train.h5 --label {label} --impute mean --scale standard
plan train.h5 --memory 1GiB --C 10
train train.h5 -o model.h5 --memory 1GiB --C 10 --log run.jsonl
evaluate model.h5 {new}
predict model.h5 {new} -o new.csv --decision
plot run.jsonl --panels gap,support --against time -o folder.svg
"""
sys.exit(run_commands(commands))
