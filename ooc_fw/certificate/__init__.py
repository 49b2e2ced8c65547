"""The exact duality gap: a pass over all rows, and the rows that the next pass may leave out."""
