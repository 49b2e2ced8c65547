"""Parts of tests: contracts to inherit, references to compare with, strategies, files.

The rest of the package does not import it.
"""
