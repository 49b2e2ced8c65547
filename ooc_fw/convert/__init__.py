"""Offline work: LIBSVM text and tables to HDF5, shuffled once and scaled, in constant memory.

    text.py      files, compressed files and standard input as blocks of whole lines
    libsvm.py    blocks of lines to labels and sparse rows; the wording of every parse error
    readers.py   CSV and Parquet by columns, in blocks of rows; what all readers of tables share
    arrays.py    .npy, .npz and HDF5 of other tools, likewise
    missing.py   how missing values are written
    tables.py    columns to labels and sparse rows: categories, missing values, what is recorded
    columns.py   means of the columns as stored, counts of labels
    spool.py     parsed rows set aside on disk; the two-pass shuffle
    writer.py    the HDF5 layout
    pipeline.py  a map in threads that keeps order; an iterator read ahead
    convert.py   convert_libsvm, convert_tables: the passes, and what to refuse before the first

Nothing is imported here: `ooc_fw.convert.libsvm` loads numba.
"""
