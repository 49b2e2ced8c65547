"""The command line: `main.py`, one module for each command, and what they share.

Owns arguments, messages, exit statuses and everything printed. Each command is a module with
``add_parser(subparsers)`` and ``run(args) -> int`` and a line in `main.COMMANDS`; modules import
numpy, h5py and the trainer inside `run`, so that ``ooc-fw --help`` starts at once.
"""
