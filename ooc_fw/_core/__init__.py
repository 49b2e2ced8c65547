"""Compiled loops: the only package of ooc_fw that imports numba.

Functions take arrays, numbers and named tuples of them, allocate little and raise nothing for a
user's mistake. Nothing is imported here, so that `ooc_fw._core` does not load numba.
"""
