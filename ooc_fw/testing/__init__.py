"""For tests of what is built on the estimators; the rest of the package does not import it."""
