"""Which of scikit-learn's checks `ooc_fw.FrankWolfeSVC` does not pass, and why.

Give them to ``sklearn.utils.estimator_checks.parametrize_with_checks`` to test classes that are
derived from the estimators. The rest of the package does not import this module.
"""

_TOLERANCE = (
    "weighted rows and copied rows have the same optimum, but the check compares seven digits, and "
    "tol is 1e-3. It passes with tol=1e-9 and a fixed gamma: auto depends on the number of copies"
)
_SIGMOID = (
    "the check expects that the most probable class is predicted. As in LIBSVM and scikit-learn's "
    "SVC, a sigmoid may differ from 1/2 at decision value 0, and coupling may disagree with votes"
)

EXPECTED_FAILED_CHECKS = {
    "check_sample_weight_equivalence_on_dense_data": _TOLERANCE,
    "check_sample_weight_equivalence_on_sparse_data": _TOLERANCE,
}
"""Reason for each check, by name."""

EXPECTED_FAILED_CHECKS_WITH_PROBABILITY = EXPECTED_FAILED_CHECKS | {
    "check_classifiers_train": _SIGMOID
}
"""The same for ``FrankWolfeSVC(probability=True)``."""
