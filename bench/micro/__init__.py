"""Rates of single parts, by pytest-benchmark: ``pytest bench/micro``."""
