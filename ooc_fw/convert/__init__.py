"""Conversion of text and tables to HDF5: rows are shuffled and scaled once, in constant memory.

``convert.py`` plans and reports; ``passes.py`` has the two passes and the spool between them.
``readers.py`` is what all inputs share, ``text.py`` LIBSVM text, ``tables.py``, ``arrow.py`` and
``csv_table.py`` tables and arrays. ``record.py`` says which columns become which features,
``features.py`` and ``encoding.py`` make them, ``writer.py`` writes the file.
"""
