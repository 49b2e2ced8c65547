"""A folder with a file of every kind that commands read, and models that many tests use."""

import shutil
import subprocess
import sys
import warnings
from contextlib import ExitStack, chdir

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from ooc_fw.cli.main import main

TEXTS = {
    "empty.h5": "",
    "empty.txt": "",
    "text.npy": "1\n2\n",
    "drawing.svg": "<svg/>",
    "zero.txt": "1 0:1\n",
    "first.csv": "0,red,0\n1,red,0\n",
    "t.csv": "age,city,label\n1,2,3\n",
    "short.csv": "a,b,y\n1,2,no\n3,no\n5,6,yes\n7,9,no\n",
    "header.csv": "income,city,age\n",
    "no-age.csv": "income,city\n100.5,Rom\n",
    "word.csv": "income,city,age\n100.5,Rom,old\n",
    "huge.csv": "income,city,age\n100.5,Rom,1e300\n",
    "no-kind.csv": "income,city,age\n100.5,Rom,1\n",
    "fair-kind.csv": "income,city,age,kind\n100.5,Rom,1,good\n7,Rom,1,fair\n",
    "no-label.csv": "income,city,age,kind\n100.5,Rom,1,good\n7,Rom,1,\n",
    "one-class.txt": "1 1:2\n1 1:3\n",
    "nan.txt": "1 1:2\n-1 1:nan\n",
    "equal.txt": "1 1:2\n-1 1:2\n",
    "other.txt": "5 1:1 2:1 3:1 4:1\n",
}

COMMANDS = """
convert d.txt maxabs.h5 --scale maxabs
convert X.npy reversed.h5 --labels y.npy --like d.h5
convert t.csv targets.h5 --label label --task regression
train d.h5 -o run.model.h5 --labels labels.npy --max-iter 1 --checkpoint run.ckpt --log run.log
train d.h5 -o marks.h5 --landmarks 20
train d.h5 -o novel.h5 --task novelty
train d.h5 -o weighted.h5 --class-weight=-7=0.5,3=4 --C 2
train d.h5 -o plain.h5 --C 2
train d.h5 -o numbers.h5 --labels amounts.npy --task regression --kernel linear
train d.h5 -o sure.h5 --probability
train d.h5 -o three.h5 --labels thirds.npy --probability --C 10
train d.h5 -o three-marks.h5 --labels thirds.npy --landmarks 20
train d.h5 -o lines.h5 --labels lines.npy
convert people.csv people.h5 --label kind --one-hot city --impute mean --scale standard --log1p
train people.h5 -o people.model.h5 --C 10
"""


def people(n_rows=300):
    """Lines of a table with a category, missing numbers and labels that are words."""
    rng = np.random.default_rng(0)
    yield "age,city,income,kind"
    for _ in range(n_rows):
        age, city = rng.integers(18, 90), rng.choice(["Rom", "Köln, am Rhein", "Oslo"])
        kind = "good" if (age > 50) ^ (city == "Rom") else "bad"
        yield f'{age if rng.random() > 0.05 else ""},"{city}",{rng.gamma(2, 900):.2f},{kind}'


def arrays(table, data_file):
    """Arrays by the names of their files, in the order of the rows before `data_file`."""
    with h5py.File(data_file) as file:
        order = np.argsort(file["row"])
        X, labels = file["X"][...][order], file["y"][...][order]
    thirds = np.argsort(np.argsort(X[:, 0])) * 3 // len(X)
    yield "X", table.X
    yield "y", table.y
    yield "labels", labels
    yield "words", np.where(labels > 0, "yes", "no")
    yield "lines", np.where(labels > 0, "a\nb", "c")
    yield "thirds", np.array(["a,b", "blå", "c"])[thirds]
    yield "amounts", np.arange(200) * 0.5
    yield "one", np.full(200, -7.0)
    yield "rare", np.where(np.arange(200) < 1, "rare", "often")
    yield "half", [0.5]
    yield "none", np.full(200, "")
    yield "large", np.full((200, 4), 1e30)
    yield "matrix", np.ones((2, 2))
    yield "objects", np.array([{}, {}])
    yield "wide", np.ones((2, 9), dtype=np.float32)


@pytest.fixture(scope="session")
def cells():
    """Cells of three types by 8 genes; a third of the last ones have no type."""
    rng = np.random.default_rng(0)
    which = rng.integers(0, 3, 240)
    counts = rng.poisson(1 + 3 * np.eye(3, 8)[which]).astype(np.float32)
    names = np.array(["B", "NK", "T"])[which].astype(object)
    names[200::3] = None
    obs = pd.DataFrame(
        {
            "cell_type": pd.Categorical(names),
            "batch": np.arange(240) % 2,
            "donor": [f"d{k % 3}" for k in range(240)],
        },
        index=[f"cell {k}" for k in range(240)],
    )
    var = pd.DataFrame(index=[f"g{k}" for k in range(8)])
    found = anndata.AnnData(scipy.sparse.csr_matrix(counts), obs=obs, var=var)
    found.layers["log"] = np.log1p(counts)
    return found


@pytest.fixture(scope="session")
def files(table, text_file, data_file, model_file, cells, tmp_path_factory):
    """The folder; tests do not change it."""
    folder = tmp_path_factory.mktemp("files")
    for path, name in ((text_file, "d.txt"), (data_file, "d.h5"), (model_file, "m.h5")):
        shutil.copy(path, folder / name)
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    (folder / "people.csv").write_text("\n".join(people()) + "\n", encoding="utf-8")
    (folder / "cut.h5").write_bytes(model_file.read_bytes()[:-100])
    (folder / "bytes").write_bytes(np.random.default_rng(0).bytes(3000))
    for name, array in arrays(table, data_file):
        np.save(folder / f"{name}.npy", array)
    cells.write_h5ad(folder / "cells.h5ad")
    with warnings.catch_warnings(action="ignore"):  # of what anndata will do one day
        cells.write_zarr(folder / "cells.zarr")
    with chdir(folder):
        for command in COMMANDS.strip().splitlines():
            assert main([*command.split(), "--quiet"]) == 0, command
    return folder


@pytest.fixture
def here(files, tmp_path, monkeypatch):
    """Work in a copy of the folder."""
    folder = shutil.copytree(files, tmp_path / "here")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def program():
    """Start a command as a process, which ends with the test at the latest."""
    with ExitStack() as stack:

        def start(*arguments, **options):
            command = [sys.executable, "-m", "ooc_fw", *map(str, arguments)]
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            process = stack.enter_context(subprocess.Popen(command, **streams | options))
            stack.callback(process.kill)
            return process

        yield start
