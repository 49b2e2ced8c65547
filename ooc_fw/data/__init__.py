"""Rows and where they come from: sources, sampling, scaling and statistics of columns."""
