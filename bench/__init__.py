"""Benchmarks: data sets, solvers, and the commands that cross them.

    configs.py    which sets and solvers make which table
    datasets.py   where a set comes from, with which C and gamma; made.py makes rows by a seed
    solvers/      our methods and their peers, each run in a process of its own
    process.py    one measured child process
    run.py        crosses sets and solvers; one JSON record a run
    published.py  tables of the texts, from committed records
    verify.py     float64 brute force over a model and its data, sharing no code with ooc_fw
    same.py       the models of two checkouts, compared
    papers/       the papers' tables and figures, measured again
    micro/        rates of single parts, by pytest-benchmark

A set knows nothing of solvers and the other way round. Start with README.md in this folder.
"""
