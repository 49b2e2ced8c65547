"""The duality gap: a reading of all rows, and the rows that the next reading may leave out."""
