"""A folder of Parquet files: a classifier within 1 GiB of memory, and predictions of new rows.

    python -m ooc_fw.guides.folder [FOLDER LABEL NEW.parquet [-- OPTIONS of convert]]

Columns of words and numbers of users go by the options, as in -- --drop user --one-hot device.
Without a folder, four files of sensors are made up, and new rows. Results go to a new folder,
folder-example.
"""

import shlex
import sys
from pathlib import Path

import numpy as np

from ooc_fw.cli.guide import begin_example, end_example

end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
options = shlex.join(sys.argv[end + 1 :])
del sys.argv[end:]
given = begin_example(__file__, 3, paths=slice(0, 3, 2))
folder, label, new = given or ("parts", "seen", "new.parquet")
if not given:
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
label = shlex.quote(label)
commands = f"""
info {folder} --label {label}
convert {folder} train.h5 --label {label} --impute mean --scale standard {options}
plan train.h5 --memory 1GiB --C 10
train train.h5 -o model.h5 --memory 1GiB --C 10 --log run.jsonl
evaluate model.h5 {new}
predict model.h5 {new} -o new.csv --decision
plot run.jsonl --panels gap,support --against time -o folder.svg
"""
end_example(commands)
