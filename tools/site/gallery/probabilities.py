"""
Are the probabilities right?
============================

Of the rows to which a model gives a probability of 70 %, seven in ten should be of the class. The
bars below say how many rows have which probability.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.calibration import calibration_curve
from sklearn.datasets import make_classification

import ooc_fw

X, y = make_classification(12_000, 10, flip_y=0.15, class_sep=0.7, random_state=0)
X, X_new, y, y_new = X[:2000], X[2000:], y[:2000], y[2000:]
model = ooc_fw.FrankWolfeSVC(C=1, probability=True, random_state=0).fit(X, y)
given = model.predict_proba(X_new)[:, 1]
squeezed = 1 / (1 + np.exp(-model.decision_function(X_new)))

_, (ax, below) = plt.subplots(2, sharex=True, figsize=(5.2, 5.2), height_ratios=[3, 1])
ax.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=0.9, label="as it should be")
names = "predict_proba", "sigmoid of the decision value"
for values, label, marker in zip([given, squeezed], names, "o^", strict=True):
    share, mean = calibration_curve(y_new, values, n_bins=10)
    ax.plot(mean, share, marker=marker, markersize=4, label=label)
ax.set(ylabel="share of the class", title="10,000 new rows")
ax.legend()
below.hist(given, bins=20, range=(0, 1))
below.set(xlabel="probability of the class", ylabel="rows")
plt.show()
