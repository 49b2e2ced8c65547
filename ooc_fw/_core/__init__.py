"""Compiled loops: the only package of ooc_fw that imports numba.

Functions take arrays, numbers and named tuples of them, allocate little and raise nothing for a
user's mistake. They return numbers and plain tuples: numba runs Python code to make a named tuple
or a member of an enumeration, and the process crashes if a signal raises an exception there.
Nothing is imported here, so that `ooc_fw._core` does not load numba.
"""
