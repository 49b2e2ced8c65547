"""
Accuracy and the number of rows
===============================

What are more rows worth? A linear model has learned all it can from a few hundred. An exact model
goes on learning, and 100 landmarks fall behind, since they are too few for what the rows tell.
"""

import matplotlib.pyplot as plt
import numpy as np

import ooc_fw

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, size=(60_000, 2))
wave = np.sin(12 * X[:, 0]) * np.sin(12 * X[:, 1]) + X.sum(axis=1)
y = wave + 0.1 * rng.normal(size=len(X)) > 0
X, X_new, y, y_new = X[:16_000], X[16_000:], y[:16_000], y[16_000:]

models = {
    "exact": {"exact": True, "gamma": 20, "tol": 1e-2},
    "100 landmarks": {"landmarks": 100, "gamma": 20},
    "linear": {"kernel": "linear"},
}
numbers = [125, 250, 500, 1000, 2000, 4000, 8000, 16000]
_, ax = plt.subplots()
for name, options in models.items():
    scores = []
    for n in numbers:
        model = ooc_fw.FrankWolfeSVC(C=10, random_state=0, **options).fit(X[:n], y[:n])
        scores.append(100 * model.score(X_new, y_new))
    ax.semilogx(numbers, scores, marker="o", markersize=4, label=name)
ax.set_xticks(numbers, [f"{n:,}" for n in numbers])
ax.minorticks_off()
ax.set(xlabel="training rows", ylabel="accuracy on new rows (%)", title="Made rows of two columns")
ax.legend()
plt.show()
