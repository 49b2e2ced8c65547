"""
Log of a run
============

With `log`, `fit` writes its progress to a file, an event a line, as ``ooc-fw train --log``
does. The command ``ooc-fw plot`` draws such files. Here are two of their numbers, against time.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np

import ooc_fw

rng = np.random.default_rng(0)
X = rng.normal(size=(6000, 2))
y = np.sin(2 * X[:, 0]) * X[:, 1] > 0
model = ooc_fw.FrankWolfeSVC(C=10, method="swap2", lmo="sampled", random_state=0)
with TemporaryDirectory() as folder:
    path = Path(folder) / "run.jsonl"
    model.fit(X, y, log=path)
    events = [json.loads(line) for line in path.read_text().splitlines()]

events = [event for event in events if event["event"] == "progress" and event["sampled_gap"]]
time = [event["elapsed_s"] for event in events]
_, (ax, below) = plt.subplots(2, sharex=True, figsize=(6.4, 5))
ax.semilogy(time, [event["sampled_gap"] for event in events], label="sampled gap")
ax.semilogy(time[-1:], [model.certified_gap_], "*", markersize=11, label="certified gap")
ax.set(ylabel="relative gap", title=f"{len(X):,} rows, {model.n_iter_:,} steps")
ax.legend()
below.plot(time, [event["n_support"] for event in events])
below.set(xlabel="time (s)", ylabel="rows with weight")
plt.show()
