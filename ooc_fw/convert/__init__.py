"""Conversion of text and tables to HDF5: rows are shuffled and scaled once, in constant memory.

``convert.py`` has the two passes and its report, ``spool.py`` keeps the rows between them.
``readers.py`` is what all inputs share: ``text.py`` reads LIBSVM text, ``arrow.py`` tables and
``arrays.py`` arrays. ``tables.py`` says which columns become which features, ``features.py`` makes
them, and ``writer.py`` writes the file.
"""
