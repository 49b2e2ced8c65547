"""Parts of tests: contracts to inherit, references to compare with, strategies, files."""
