"""The tables and figures of the papers that the project implements, measured again.

``python -m bench.papers PAPER [ENTRY ...]`` makes some of them, ``python -m bench.papers all``
all. There is a module a paper, and `rules` for the step rules of today; in each, one function a
table or figure shows what the runs it needs have given. Sets are in `data`, single runs, which are
kept so that none is repeated, in `runs`, what tables and figures share in `entries`, and the page
of results in `page`. What is printed in the papers, said about entries and known of sets is TOML.
"""
