"""``ooc-fw verify``: checks that a data file still holds what was written to it."""

from __future__ import annotations

import argparse
import logging

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE, NO
from ooc_fw.conversion.verify import verify_file
from ooc_fw.report.progress import Waiting
from ooc_fw.system.errors import DamageError

logger = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> int:
    """Check that a data file is undamaged."""
    damage = []
    try:
        with Waiting("verify", unit="B", quiet=args.quiet) as progress:
            verify_file(args.data, progress)
    except DamageError as error:
        damage.append(str(error))
        logger.error("%s", error)
    result = {"file": args.data, "intact": not damage, "damage": damage}
    common.print_result(args, result, [f"{args.data}{' is damaged' if damage else ': intact'}"])
    return NO if damage else DONE
