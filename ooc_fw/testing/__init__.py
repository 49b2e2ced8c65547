"""Contract test classes for whoever adds a part: inherit one and gain all its tests.

Needs pytest; not imported by anything else in the package.
"""
