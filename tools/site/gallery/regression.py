"""
Tube of a regression
====================

Errors up to `epsilon` cost nothing, larger ones their squares. Only rows at the edge of the tube or
outside it are support vectors, so a wider tube needs fewer of them.
"""

import matplotlib.pyplot as plt
import numpy as np

import ooc_fw

rng = np.random.default_rng(0)
x = np.sort(rng.uniform(0, 10, 150))
y = np.sin(x) + 0.1 * x + 0.15 * rng.normal(size=150)
line = np.linspace(0, 10, 400)

_, axes = plt.subplots(2, sharex=True, figsize=(6.4, 5.4))
for ax, epsilon in zip(axes, [0.1, 0.4], strict=True):
    model = ooc_fw.FrankWolfeSVR(C=10, epsilon=epsilon, gamma=0.5).fit(x[:, None], y)
    found = model.predict(line[:, None])
    ax.fill_between(line, found - epsilon, found + epsilon, color="#cfe3f1", label="tube")
    ax.plot(line, found, label="prediction")
    outside = np.abs(model.predict(x[:, None]) - y) >= epsilon
    ax.plot(x[~outside], y[~outside], ".", color="#7f7f7f", label="rows inside")
    ax.plot(x[outside], y[outside], "o", color="#d55e00", markersize=4, label="rows outside")
    n, score = outside.sum(), model.score(x[:, None], y)
    ax.set_title(f"epsilon {epsilon:g}: {n} of {len(x)} rows outside, R2 {score:.2f}")
    ax.set_ylabel("target")
axes[1].set_xlabel("column")
axes[0].legend(ncols=2)
plt.show()
