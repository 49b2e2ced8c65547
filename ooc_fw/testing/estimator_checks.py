"""Which of scikit-learn's checks `ooc_fw.FrankWolfeSVC` does not pass, and why.

Owns the list for ``sklearn.utils.estimator_checks.parametrize_with_checks``.
"""

_TWO_CLASSES = "partial_fit learns two classes, and the check teaches it three; fit learns any"

EXPECTED_FAILED_CHECKS = {
    "check_estimators_partial_fit_n_features": _TWO_CLASSES,
    "check_fit_score_takes_y": _TWO_CLASSES,
    "check_n_features_in_after_fitting": _TWO_CLASSES,
}
"""Reason for each check, by name."""
