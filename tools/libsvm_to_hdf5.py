#!/usr/bin/env python3
"""Convert LIBSVM text to HDF5: ``python tools/libsvm_to_hdf5.py IN... OUT.h5 [options]``.

The same as ``ooc-fw convert``; see ``--help`` for the options.
"""

import sys

from ooc_fw.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))
