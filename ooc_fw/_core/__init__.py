"""Compiled loops: the only package of ooc_fw that imports numba.

Every function here takes arrays and numbers, allocates little or nothing and raises nothing for a
user's mistake; the modules above it give their results a meaning. Nothing is imported here, so that
importing `ooc_fw._core` does not load numba: import the module that holds the loop, and import it
late where start-up time matters.
"""
