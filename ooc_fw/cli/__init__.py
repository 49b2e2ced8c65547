"""The command line: ``main.py``, a module for each command, and what commands share.

A command is a module with ``add_parser(subparsers)`` and ``run(args) -> int``, and a line in
`main.COMMANDS`. Modules import numpy, h5py and the trainer inside `run`, so that ``ooc-fw --help``
starts at once. Arguments that follow from `ooc_fw.options` are declared by `arguments`.
"""
