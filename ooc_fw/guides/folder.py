"""A folder of Parquet files: a classifier within 1 GiB of memory, and predictions of new rows.

    python -m ooc_fw.guides.folder

Four files of sensors are made up, and new rows. Results go to a new folder, folder-example.
"""

import sys
from pathlib import Path

import numpy as np

from ooc_fw.cli.demo import begin_example, end_example

begin_example(__file__)
try:
    from pyarrow import parquet, table
except ImportError:
    sys.exit("these files are made by pyarrow, which is not installed: pip install pyarrow")
Path("parts").mkdir()
rng = np.random.default_rng(0)
for name in ("parts/0", "parts/1", "parts/2", "parts/3", "new"):
    X = rng.normal(size=(2000, 4))
    radius = np.hypot(X[:, 0], X[:, 1]) + 0.05 * rng.normal(size=2000)
    X[rng.random(X.shape) < 0.01] = np.nan
    columns = {f"sensor {k}": X[:, k] for k in range(4)}
    columns["seen"] = np.where(radius < 1.2, "near", "far")
    parquet.write_table(table(columns), f"{name}.parquet")
end_example("""
info parts --label seen
convert parts train.h5 --label seen --impute mean --scale standard
train train.h5 --memory 1GiB --C 10 --dry-run
train train.h5 -o model.h5 --memory 1GiB --C 10 --log run.jsonl
evaluate model.h5 new.parquet
predict model.h5 new.parquet -o new.csv --decision
plot run.jsonl --panels gap,support --against time -o folder.svg
""")
