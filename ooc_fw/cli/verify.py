"""``ooc-fw verify``: whether a data file still holds what was written to it."""

from __future__ import annotations

import argparse
import logging

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE, NO
from ooc_fw.convert.verify import verify_file
from ooc_fw.report.progress import Waiting
from ooc_fw.system.errors import DamageError

logger = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> int:
    """Check that a data file is undamaged."""
    try:
        with Waiting("verify", unit="B", quiet=args.quiet) as progress:
            report = verify_file(args.data, progress=progress)
    except DamageError as error:
        if args.json:
            common.print_result(args, {"file": args.data, "intact": False})
        logger.error("%s", error)
        return NO
    arrays = {}
    lines = []
    for array in report.arrays:
        facts = {"bytes": array.n_bytes, "chunks": array.n_chunks, "damaged": array.n_damaged}
        arrays[array.name] = {**facts, "damage": list(array.damage)}
        verdict = f"damaged in {array.n_damaged}" if array.n_damaged else "intact"
        lines.append(f"{array.name}: {array.n_bytes} bytes, chunks {array.n_chunks}, {verdict}")
    lines.append(f"{report.path}{': intact' if report.intact else ' is damaged'}")
    result = {
        "file": report.path,
        "file_bytes": report.n_bytes,
        "checksums": "crc32",
        "intact": report.intact,
        "arrays": arrays,
    }
    common.print_result(args, result, lines)
    for array in report.arrays:
        for sentence in array.damage:
            logger.error("%s", sentence)
        if array.n_damaged > len(array.damage):
            logger.error("%d more in %s", array.n_damaged - len(array.damage), array.name)
    return DONE if report.intact else NO
