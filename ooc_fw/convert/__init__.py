"""Conversion of text and tables to HDF5: rows are shuffled and scaled once, in constant memory.

``convert.py`` has the two passes and its report, ``spool.py`` keeps the rows between them.
``readers.py`` is what all inputs share, ``text.py`` LIBSVM text, ``tables.py``, ``arrow.py`` and
``csv_table.py`` tables and arrays, and which columns become which features; ``features.py`` makes
them, ``writer.py`` writes the file.
"""
