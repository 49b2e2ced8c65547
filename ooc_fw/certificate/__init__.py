"""The exact duality gap: a pass over all rows, and which rows need not be looked at again."""
