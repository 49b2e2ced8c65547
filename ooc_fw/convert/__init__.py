"""Conversion of text and tables to HDF5: rows are shuffled and scaled once, in constant memory.

``convert.py`` plans, ``passes.py`` has the two passes, ``readers.py`` what all inputs share.
"""
