"""Compiled loops: the only package of ooc_fw that imports numba.

Functions take arrays, numbers, and named tuples of these. They allocate little, and do not raise
errors for a user's mistakes. They return numbers and plain tuples: numba would run Python code to
make a named tuple or a member of an enumeration, and a signal that raises an exception there would
crash the process. This file imports nothing, so that `import ooc_fw._core` does not load numba.
"""
