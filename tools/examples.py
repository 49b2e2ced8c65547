"""Examples of the guides: commands, and functions that write the made-up data for them.

    python tools/examples.py NAME

The files of an example go to a new folder, NAME-example.
"""

import os
import shlex
import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import numpy as np

from ooc_fw.cli.demo import run_commands

A1A = shlex.quote(str(files("ooc_fw.data") / "samples" / "a1a.xz"))
TRAIN = "train rows.h5 --lmo full --exact --C 1 --tol 1e-2 --max-time 60s"
COMMANDS = {
    "cells": """
convert donor-1.h5ad cells.h5 --label cell_type --missing-labels drop --log1p --scale maxabs
info cells.h5
convert donor-2.h5ad test.h5 --like cells.h5 --label cell_type --missing-labels drop
train cells.h5 -o types.h5 --C 10
evaluate types.h5 test.h5
predict types.h5 donor-2.h5ad -o types.csv
importance types.h5 donor-2.h5ad --top 10 --figure cells.svg
""",
    "folder": """
info parts --label seen
convert parts train.h5 --label seen --impute mean --scale standard
train train.h5 --memory 1GiB --C 10 --dry-run
train train.h5 -o model.h5 --memory 1GiB --C 10 --log run.jsonl
evaluate model.h5 new.parquet
predict model.h5 new.parquet -o new.csv --decision
plot run.jsonl --panels gap,support -o folder.svg
""",
    "methods": f"""
convert {A1A} rows.h5
{TRAIN} --method fw -o fw.h5 --log fw.jsonl
{TRAIN} --method partan -o partan.h5 --log partan.jsonl
{TRAIN} --method swap2 -o swap2.h5 --log swap2.jsonl
{TRAIN} --method corrective -o corrective.h5 --log corrective.jsonl
plot fw.jsonl partan.jsonl swap2.jsonl corrective.jsonl --panels gap -o methods.svg
""",
    "tables": """
info departures.csv --label late
convert departures.csv departures.h5 --label late \
    --one-hot carrier --target-encode origin --dates departs --scale standard
split departures.h5 train.h5 test.h5
tune train.h5 -o late.h5 --max-time 60s
evaluate late.h5 test.h5
importance late.h5 test.h5 --figure tables.svg
""",
}
"""Commands of each example, in the order in which they run."""


def _write_cells(rng: np.random.Generator) -> None:
    anndata = import_module("anndata")
    profiles = rng.gamma(0.3, 1.0, 300) * rng.lognormal(0, 0.5, (4, 300))
    for path in ("donor-1.h5ad", "donor-2.h5ad"):
        types = rng.choice(4, 1500, p=[0.5, 0.3, 0.15, 0.05])
        depth = rng.lognormal(0, 0.4, (1500, 1)) * rng.lognormal(0, 0.3, 300)
        counts = rng.poisson(depth * profiles[types]).astype(np.float32)
        cell_type = np.array(["T cell", "B cell", "monocyte", "dendritic"])[types]
        cells = anndata.AnnData(counts, {"cell_type": cell_type})
        cells.var_names = [f"gene {k}" for k in range(300)]
        cells.write_h5ad(path)


def _write_folder(rng: np.random.Generator) -> None:
    parquet = import_module("pyarrow.parquet")
    Path("parts").mkdir()
    for name in ("parts/0", "parts/1", "parts/2", "parts/3", "new"):
        X = rng.normal(size=(2000, 4))
        radius = np.hypot(X[:, 0], X[:, 1]) + 0.05 * rng.normal(size=2000)
        X[rng.random(X.shape) < 0.01] = np.nan
        columns = {f"sensor {k}": X[:, k] for k in range(4)}
        columns["seen"] = np.where(radius < 1.2, "near", "far")
        table = import_module("pyarrow").table(columns)
        parquet.write_table(table, f"{name}.parquet")


def _write_departures(rng: np.random.Generator) -> None:
    carrier, origin, hour = (rng.integers(0, most, 6000) for most in (9, 200, 24))
    date = np.datetime64("2024-01-01") + rng.integers(0, 365, 6000)
    departs = date.astype("datetime64[m]") + 60 * hour + rng.integers(0, 60, 6000)
    delay = rng.normal(0, 1, 200)[origin] + rng.normal(0, 0.5, 9)[carrier]
    delay += rng.normal(0, 0.7, 6000) + 1.5 * np.cos((hour - 18) / 12 * np.pi)
    late = np.where(delay > 1, "yes", "no")
    names = [np.array(list("ABCDEFGHI"))[carrier], np.char.add("airport ", origin.astype(str))]
    distance = rng.integers(100, 4000, 6000)
    columns = np.column_stack([*names, departs.astype(str), distance, late])
    header = "carrier,origin,departs,distance,late"
    np.savetxt("departures.csv", columns, "%s", ",", header=header, comments="")


MAKERS = {"cells": _write_cells, "folder": _write_folder, "tables": _write_departures}

if __name__ == "__main__":
    if sys.argv[1:] not in [[name] for name in COMMANDS]:
        sys.exit(f"name an example: {', '.join(COMMANDS)}")
    name = sys.argv[1]
    folder = Path(f"{name}-example")
    folder.mkdir()
    os.chdir(folder)
    if name in MAKERS:
        MAKERS[name](np.random.default_rng(0))
    status = run_commands(COMMANDS[name])
    print(f"\nin {folder}: {', '.join(sorted(os.listdir()))}")
    sys.exit(status)
