"""The exact duality gap: a pass over all rows, and which rows the next one may leave out."""
