"""
Sampled and certified gap
=========================

Five rows of 100,000 are far from the others and have the wrong label. Samples hardly ever contain
one, so the sampled gap falls below the tolerance. The pass over all rows finds them, and training
goes on. It ends once the worst row, or as here the objective, is certified to be close enough.
"""

import matplotlib.pyplot as plt
import numpy as np

import ooc_fw

rng = np.random.default_rng(0)
X = rng.normal(size=(100_000, 4))
labels = np.where(X[:, 0] + X[:, 1] > 0, 1, -1).astype(np.int8)
X += 0.3 * labels[:, None]
X[:5] += [6, -3, 0, 0]
labels[:5] = -1

watched: list[ooc_fw.SolverState] = []
options = ooc_fw.TrainOptions(C=10, method="swap2", lmo="sampled", tol=1e-2)
found = ooc_fw.solve(X, labels, ooc_fw.make_kernel("rbf", gamma=0.2), options, [watched.append])
step = np.array([state.iteration for state in watched])
sampled = np.array([state.sampled_gap for state in watched], dtype=float)
certified = np.array([state.certified_gap for state in watched], dtype=float)
new = np.flatnonzero(certified != np.append(np.nan, certified[:-1]))
new = new[np.isfinite(certified[new])]

figure, ax = plt.subplots()
ax.semilogy(step, sampled, linewidth=0.9, label="sampled gap, an estimate")
ax.semilogy(step[new], certified[new], "*", markersize=11, label="certified gap, over all rows")
ax.axhline(options.tol, color="black", linestyle="--", linewidth=0.9, label="tolerance")
ax.set(xlabel="steps", ylabel="relative gap")
share = 1 - found.dual / found.primal
ax.set_title(f"In the end the best objective is lower by at most {share:.1%}")
figure.legend(loc="outside lower center", ncols=3)
plt.show()
