"""The command line: `program`, ``main.py``, the commands in ``commands.py``, a module for each.

Arguments are declared without numpy, h5py and the trainer, which the modules of commands import, so
that ``ooc-fw --help`` starts at once.
"""

import atexit
import gc

from ooc_fw.system.interrupt import ignore_signals, leave_at_signals


def program() -> int:
    """Run the command of this process.

    A signal that arrives before the command begins, or after its end, ends the process at once.
    The memory goes back to the system as a whole: a search for garbage would only take time.
    """
    leave_at_signals()
    gc.disable()  # until the command begins: imports leave no garbage
    atexit.register(ignore_signals)  # the last thing to be called before the interpreter goes
    from ooc_fw.cli.main import main  # takes most of the time before a command begins

    status = main()
    leave_at_signals()
    gc.freeze()
    return status
