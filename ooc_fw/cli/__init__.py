"""The command line: `program` starts it, ``commands.py`` lists the commands, each has a module.

Only the modules of the commands import numpy, h5py and the trainer. The declarations of arguments
do without them, so that ``ooc-fw --help`` answers at once.
"""

import atexit
import gc
import os
import sys

from ooc_fw.system.errors import ignore_signals, raise_at_signals, raised


def program() -> int:
    """Run the command of this process. Signals after its end do not change the exit status."""
    raise_at_signals()
    gc.disable()  # until the command begins, since imports leave no garbage
    try:
        from ooc_fw.cli.main import main  # takes most of the time before a command begins

        status = main()
        ignore_signals()
    except (KeyboardInterrupt, Exception):  # an import may make another error of a signal
        if not raised:
            raise
        ignore_signals()
        print("ooc-fw: interrupted", file=sys.stderr, flush=True)
        status = 128 + raised[0]
    if status > 128:  # after a late SIGINT, Python would exit with a status of its own
        if "distributed" in sys.modules:  # a cluster ends its processes and frees semaphores
            atexit._run_exitfuncs()
        os._exit(status)
    gc.freeze()  # there is no need to free objects one by one: the process ends
    return status
