"""How missing values are written in text."""

_WORDS = ("NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NAN", "-nan", "null", "NULL", "None")

MISSING = ("", *_WORDS, "?", "-")
"""Missing numbers. Of categories, only the empty one is missing."""

MISSING_LABELS = frozenset(MISSING) - {"-"}
"""Missing labels: - may be the opposite of +."""
