"""
Boundary of what is ordinary
============================

`FrankWolfeOneClass` learns from ordinary rows alone. `contamination` is the share of new ordinary
rows that may be called novel; a smaller one moves the boundary outwards.
"""

import matplotlib.pyplot as plt
import numpy as np

import ooc_fw

rng = np.random.default_rng(0)
angle = rng.uniform(0, 1.5 * np.pi, 6000)
ring = 2 * np.column_stack([np.cos(angle), np.sin(angle)])
ring += 0.25 * rng.normal(size=ring.shape)
X, X_new, novel = ring[:1000], ring[1000:], rng.uniform(-3.2, 3.2, size=(60, 2))
side = np.linspace(-3.5, 3.5, 200)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)

_, axes = plt.subplots(1, 2, figsize=(6.8, 4.4), sharey=True)
for ax, share in zip(axes, [0.1, 0.01], strict=True):
    model = ooc_fw.FrankWolfeOneClass(contamination=share, random_state=0).fit(X)
    values = model.decision_function(grid).reshape(len(side), -1)
    ax.contourf(side, side, values > 0, levels=[-0.5, 0.5, 1.5], colors=["white", "#cfe3f1"])
    ax.scatter(*X.T, s=3, label="training rows")
    found = model.predict(novel) < 0
    for part, color, label in [(found, "#d55e00", "novel rows"), (~found, "black", "not found")]:
        ax.scatter(*novel[part].T, s=22, c=color, marker="x", linewidth=1, label=label)
    alarms = np.mean(model.predict(X_new) < 0)
    ax.set_title(f"contamination {share:g}:\n{alarms:.1%} of new ordinary rows", weight="normal")
    ax.set(xlabel="first column", aspect="equal")
axes[0].set_ylabel("second column")
axes[0].legend(loc="lower right", frameon=True)
plt.show()
