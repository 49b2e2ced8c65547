"""Conversion of text and tables to HDF5: rows are shuffled and scaled once, in constant memory.

``convert.py`` opens inputs, plans and reports, ``passes.py`` has the two passes, with rows on disk
between them, and ``writer.py`` the layout. Inputs (``readers.py``) are ``text.py`` (LIBSVM),
``arrow.py`` (CSV, Parquet, Arrow) and ``arrays.py``; ``tables.py`` makes features of the columns of
tables. ``preflight.py`` looks at data before training, ``verify.py`` compares a file with its
checksums.
"""
