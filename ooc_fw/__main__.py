"""``python -m ooc_fw``: the same as the command ``ooc-fw``."""

import sys

from ooc_fw.cli import program

if __name__ == "__main__":
    sys.exit(program())
