"""Benchmarks: data sets, solvers, and the commands that cross them.

    datasets.py   which data, from which files, with which C and gamma
    solvers/      our methods and their peers, each run in a process of its own
    process.py    one measured child process
    run.py        crosses data sets, solvers and tasks; one JSON record a run
    report.py     records to a Markdown table and a figure
    published.py  tables of the texts from committed records
    verify.py     float64 brute force over a model and its data, sharing no code with ooc_fw
    papers/       the papers' tables and figures, measured again
    micro/        times of single parts, by pytest-benchmark

A data set knows nothing of solvers and the other way round; adding either is one entry. Start with
README.md in this folder.
"""
