"""Models made by hand, and what they say by definition."""

import dataclasses

import numpy as np

from ooc_fw import Model, make_kernel
from ooc_fw.data.scaling import Scaling
from ooc_fw.model.machines import Classifier
from tests.support.reference import exact_sum, kernel_values, to_csr

CLASSES = np.array([-7.0, 3.0, 4.0, 9.0])


def random_rows(n, d=3, seed=0, density=0.7):
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(size=(n, d)) * (rng.random((n, d)) < density), 2).astype(np.float32)


def minmax(d=3):
    return Scaling("minmax", False, np.arange(d, dtype=float), np.full(d, 0.5))


def make_model(
    vectors, n_classes=2, *, landmarks=False, size=1.0, rho=0.125, sparse=False, seed=1, **fields
):
    """Each classifier has weights on all vectors, whose training rows are 0, 2, 4 ... in disorder.

    Weights of landmarks have this `size`.
    """
    rng, n = np.random.default_rng(seed), len(vectors)
    one_each = landmarks and n_classes > 2
    n_classifiers = n_classes if one_each else n_classes * (n_classes - 1) // 2
    if landmarks:
        places = [np.arange(n)] * n_classifiers
        betas = [size * rng.normal(size=n) for _ in places]
        numbers = {"rho": 1.0, "primal": 3.0, "dual": 2.5, "sampled_gap": 0.25}
    else:
        places = [rng.permutation(n) for _ in range(n_classifiers)]
        betas = [rng.dirichlet(np.ones(n)) * rng.choice([-1, 1], n) for _ in places]
        numbers = {"rho": rho, "certified_gap": 1e-4}
    given = {
        **{"kernel": make_kernel("rbf", gamma=0.5), "C": 2.0, "scaling": Scaling()},
        "n_rows": 2 * n,
        **{"classes": CLASSES[:n_classes], "status": "converged"},
        "jitter": 2e-6 if landmarks else None,
        "support_vectors": to_csr(vectors) if sparse else vectors,
        "rows": 2 * rng.permutation(n),
        "classifiers": [Classifier(*own, **numbers) for own in zip(places, betas, strict=True)],
    }
    return Model(**(given | fields))


def with_numbers(model, **changes):
    """The model with other fields of its classifiers, NaN for numbers that are unknown."""
    own = []
    for k, one in enumerate(model.classifiers):
        new = {name: values[k] for name, values in changes.items()}
        new = {name: None if np.ndim(x) == 0 and np.isnan(x) else x for name, x in new.items()}
        own.append(dataclasses.replace(one, **new))
    return dataclasses.replace(model, classifiers=own)


def exact_decision(model, vectors, X):
    """The decision function by definition, in extended precision, shape (n_rows, k)."""
    values = kernel_values(model.kernel, X, vectors)
    columns = []
    for own in model.classifiers:  # the terms of the bias cancel
        sums = values[:, own.sv] @ own.beta.astype(np.longdouble) + exact_sum(own.beta)
        columns.append(sums / np.longdouble(own.rho))
    return np.stack(columns, axis=1)
