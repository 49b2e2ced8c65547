"""The command line: ``main.py``, modules of commands, and what they share in ``common.py``.

Commands import numpy, h5py and the trainer when they run, so that ``ooc-fw --help`` starts at once.
To add a command, write a module with ``add_commands`` and add it to `main.MODULES`.
"""
