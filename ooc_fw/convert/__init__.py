"""Conversion of text and tables to HDF5: rows are shuffled and scaled once, in constant memory.

    convert.py    `convert`: what is refused, planned and reported; passes.py has the two passes
    inputs.py     open inputs of any format
    readers.py    what all readers share; text.py, delimited.py (CSV), parquet.py and arrays.py
    libsvm.py     blocks of lines to labels and sparse rows
    record.py     which columns of a table become which features; tables.py encodes the cells
    like.py       what a test file takes from its training file
    columns.py    logarithms and counts of labels
    spool.py      parsed rows on disk, and the shuffle
    writer.py     the HDF5 layout
    pipeline.py   threads and progress
    verify.py     comparison of a file with its checksums
    preflight.py  measures of data before training; advice.py turns them into sentences

Nothing is imported here: `ooc_fw.convert.libsvm` loads numba.
"""
