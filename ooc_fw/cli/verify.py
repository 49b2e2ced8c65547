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
    try:
        with Waiting("verify", unit="B", quiet=args.quiet) as progress:
            damage = verify_file(args.data, progress=progress)
    except DamageError as error:
        damage = [str(error)]
    result = {"file": args.data, "intact": not damage, "damage": damage}
    common.print_result(args, result, [f"{args.data}{' is damaged' if damage else ': intact'}"])
    for sentence in damage:
        logger.error("%s", sentence)
    return NO if damage else DONE
