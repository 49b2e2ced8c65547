"""
Regions of C and gamma
======================

A larger gamma makes each row count nearby only, and a larger C makes errors on training rows
dearer. With both, the boundary winds around single rows. The accuracy is that on new rows.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons

import ooc_fw

X, y = make_moons(200, noise=0.3, random_state=0)
X_new, y_new = make_moons(5000, noise=0.3, random_state=1)
side = np.linspace(-2.2, 3.2, 120), np.linspace(-1.8, 2.3, 100)
grid = np.stack(np.meshgrid(*side), axis=-1)

figure, axes = plt.subplots(3, 3, figsize=(6.4, 5.6), sharex=True, sharey=True)
for row, C in zip(axes, [0.1, 10, 1000], strict=True):
    for ax, gamma in zip(row, [0.1, 1, 30], strict=True):
        model = ooc_fw.FrankWolfeSVC(C=C, gamma=gamma, random_state=0).fit(X, y)
        values = model.decision_function(grid.reshape(-1, 2)).reshape(grid.shape[:2])
        ax.contourf(*side, values > 0, levels=[-0.5, 0.5, 1.5], colors=["#cfe3f1", "#f6d9c6"])
        for label, color, marker in [(0, "#0072b2", "o"), (1, "#d55e00", "^")]:
            ax.scatter(*X[y == label].T, s=7, c=color, marker=marker)
        ax.set_title(f"C {C:g}, gamma {gamma:g}: {model.score(X_new, y_new):.1%}", weight="normal")
        ax.grid(False)
figure.supxlabel("first column")
figure.supylabel("second column")
plt.show()
