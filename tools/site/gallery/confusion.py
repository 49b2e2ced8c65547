"""
Which classes are confused?
===========================

Ten digits have 45 pairs of classes, and an exact model has a binary classifier for each. Half of
the rows are held out, and the table counts what the model says of them.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.metrics import ConfusionMatrixDisplay
from sklearn.model_selection import train_test_split

import ooc_fw

X, y = load_digits(return_X_y=True)
X, X_new, y, y_new = train_test_split(X / 16, y, test_size=0.5, random_state=0)
model = ooc_fw.FrankWolfeSVC(C=10, random_state=0).fit(X, y)

_, ax = plt.subplots(figsize=(5.2, 4.8))
ConfusionMatrixDisplay.from_estimator(model, X_new, y_new, ax=ax, cmap="Blues", colorbar=False)
ax.set(xlabel="predicted digit", ylabel="digit")
ax.set_title(f"{len(X_new)} new rows, accuracy {model.score(X_new, y_new):.1%}")
ax.grid(False)
plt.show()
