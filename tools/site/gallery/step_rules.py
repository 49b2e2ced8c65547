"""
Gap of step rules
=================

The step rules solve the same problem. Plain Frank-Wolfe steps (`fw`) come to a small gap slowly,
PARTAN steps less so, and away steps (`mfw`) and pairwise steps (`swap2`) fast. Each look is at all
rows here, so that the gap is exact but for rounding.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import ooc_fw

X, digit = load_digits(return_X_y=True)
labels = np.where(digit % 2 == 1, 1, -1).astype(np.int8)
kernel = ooc_fw.make_kernel("rbf", gamma=0.5)

_, ax = plt.subplots()
for method in ["fw", "mfw", "partan", "swap2"]:
    steps: list[tuple[int, float]] = []

    def watch(state: ooc_fw.SolverState, steps: list = steps) -> None:
        if state.sampled_gap is not None:
            steps.append((state.iteration, state.sampled_gap))

    options = ooc_fw.TrainOptions(C=10, method=method, lmo="full", max_iter=30_000)
    found = ooc_fw.solve(X / 16, labels, kernel, options, [watch])
    ax.loglog(*zip(*steps, strict=True), linewidth=1.2, label=method)
ax.set(xlabel="steps", ylabel="relative gap", title="Odd against even digits, 1,797 rows")
ax.legend()
plt.show()
