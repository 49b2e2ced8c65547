"""Conversion of text and tables to HDF5: rows are shuffled and scaled once, in constant memory.

``convert.py`` has the two readings and their report, and ``spool.py`` keeps the rows between them.
``readers.py`` is the base of all inputs: LIBSVM text (``text.py``), tables (``arrow.py``) and
arrays (``arrays.py``). ``tables.py`` chooses the columns that become features, ``features.py``
makes the features, and ``writer.py`` writes the file.
"""
