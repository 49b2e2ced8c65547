"""Rows and their sources; sampling, scaling and statistics of columns."""
