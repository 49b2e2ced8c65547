"""
Support vectors of digits
=========================

The rows of largest weight between 4 and 9 are those that look like the other digit: a model keeps
what is hard to tell apart. Most rows have no weight at all.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import ooc_fw

X, y = load_digits(return_X_y=True)
X, y = X[(y == 4) | (y == 9)] / 16, y[(y == 4) | (y == 9)]
model = ooc_fw.FrankWolfeSVC(C=10, exact=True, random_state=0).fit(X, y)
weights = np.abs(model.dual_coef_[0])
heaviest = model.support_[np.argsort(-weights)]
others = np.setdiff1d(np.arange(len(X)), model.support_)

figure, axes = plt.subplots(4, 8, figsize=(6.4, 3.9))
kinds = {"largest weight": heaviest, "no weight": others}
rows = [(digit, kind) for digit in (4, 9) for kind in kinds]
for line, (digit, kind) in zip(axes, rows, strict=True):
    shown = kinds[kind][y[kinds[kind]] == digit][:8]
    for ax, row in zip(line, shown, strict=True):
        ax.imshow(X[row].reshape(8, 8), cmap="gray_r")
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    line[0].set_ylabel(f"{digit},\n{kind}", rotation=0, ha="right", va="center")
figure.suptitle(f"{len(model.support_)} support vectors of {len(X)} rows", weight="bold")
plt.show()
