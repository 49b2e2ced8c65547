"""The tables of the papers that the project implements, measured again.

``python -m bench.papers PAPER [ENTRY ...]`` makes some of them, ``python -m bench.papers all`` all.
Sets are in `data`, runs, which are kept so that none is repeated, in `study`, and the entries of
the papers in `gap` and `ball`. What is printed in the papers, said about entries and known of sets
is TOML.
"""
