"""The command line: `program`, ``main.py``, the commands in ``commands.py``, a module for each.

Arguments are declared without numpy, h5py and the trainer, which the modules of commands import, so
that ``ooc-fw --help`` starts at once.
"""

import gc
import os
import sys

from ooc_fw.system.errors import ignore_signals, raise_at_signals, signal_of


def program() -> int:
    """Run the command of this process; when it is over, a signal does not change its status."""
    raise_at_signals()
    gc.disable()  # until the command begins: imports leave no garbage
    try:
        from ooc_fw.cli.main import main  # takes most of the time before a command begins

        status = main()
        ignore_signals()
    except KeyboardInterrupt as interrupt:
        ignore_signals()
        print("ooc-fw: interrupted", file=sys.stderr, flush=True)
        status = 128 + signal_of(interrupt)
    if status > 128:  # Python would end by SIGINT if that came while text was executed
        os._exit(status)
    gc.freeze()  # the system takes the memory back as a whole
    return status
