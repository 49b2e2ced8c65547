"""The tables and figures of the papers that the project implements, measured again.

``python -m bench.papers PAPER [ENTRY ...]`` makes some of them, ``python -m bench.papers all``
all. There is a module a paper (`partan`, `randomization`, `swap`, `meb`), and `rules` for the step
rules of today; in each, one function a table or figure shows what the runs it needs have given:

======== =====================================================================================
module   what it owns
======== =====================================================================================
data     the data sets of the papers, and the stand-ins for those that are not at hand
runs     one run: what it is told, what it gives; all runs are kept, so that none is repeated
entries  what a table or figure is: runs, Markdown, and the claims of the paper that it checks
page     the page of results: tables, figures, summary
======== =====================================================================================
"""
