"""Contract test classes for whoever adds a part: inherit one and gain all its tests.

Needs pytest; not imported by anything else in the package. `EXPECTED_FAILED_CHECKS` says which of
scikit-learn's checks the estimator does not pass, and why.
"""

from ooc_fw.testing.estimator_checks import EXPECTED_FAILED_CHECKS

__all__ = ["EXPECTED_FAILED_CHECKS"]
