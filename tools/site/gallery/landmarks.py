"""
Number of landmarks
===================

In a landmark model only some rows, the landmarks, have weights, and all rows decide what these are.
The more landmarks, the nearer it comes to the exact model. Its gap tells nothing of this, since it
is the distance from the best weights of the same landmarks.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import ooc_fw

X, y = load_digits(return_X_y=True)
X, X_new, y, y_new = train_test_split(X / 16, y % 2, test_size=0.4, random_state=0)
exact = ooc_fw.FrankWolfeSVC(C=10, exact=True, random_state=0).fit(X, y)

numbers = [20, 40, 80, 160, 320, 640]
errors = []
for n in numbers:
    models = [ooc_fw.FrankWolfeSVC(C=10, landmarks=n, random_state=seed) for seed in range(5)]
    errors.append([100 - 100 * model.fit(X, y).score(X_new, y_new) for model in models])

_, ax = plt.subplots()
ax.loglog(numbers, [sum(five) / 5 for five in errors], label="landmarks, mean of five draws")
ax.loglog(numbers, errors, ".", color="#0072b2", markersize=4)
wrong = 100 - 100 * exact.score(X_new, y_new)
label = f"exact model, {len(exact.support_)} support vectors"
ax.axhline(wrong, color="black", linestyle="--", linewidth=0.9, label=label)
ax.set_xticks(numbers, numbers)
ax.minorticks_off()
ax.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
ax.set(xlabel="landmarks", ylabel="errors on new rows (%)")
ax.set_title(f"Odd or even digits, {len(X):,} rows")
ax.legend()
plt.show()
