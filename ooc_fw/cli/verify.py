"""``ooc-fw verify``: whether a data file still holds what was written to it."""

from __future__ import annotations

import argparse
import logging
from typing import Any

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE, NO
from ooc_fw.convert.verify import verify_file
from ooc_fw.report.progress import RowProgress
from ooc_fw.system.errors import DamageError

logger = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> int:
    """Check that a data file is undamaged."""
    try:
        with RowProgress("verify", unit="B", quiet=args.quiet) as progress:
            report = verify_file(args.data, progress=progress)
    except DamageError as error:
        if args.json:
            common.print_result(args, {"file": args.data, "intact": False})
        logger.error("%s", error)
        return NO
    arrays = {}
    for array in report.arrays:
        facts = {"bytes": array.n_bytes, "chunks": array.n_chunks, "damaged": array.n_damaged}
        arrays[array.name] = {**facts, "damage": list(array.damage)}
    result = {
        "file": report.path,
        "file_bytes": report.n_bytes,
        "checksums": "crc32",
        "intact": report.intact,
        "arrays": arrays,
    }
    common.print_result(args, result, _lines(result))
    for array in report.arrays:
        for sentence in array.damage:
            logger.error("%s", sentence)
        if array.n_damaged > len(array.damage):
            logger.error("%d more in %s", array.n_damaged - len(array.damage), array.name)
    return DONE if report.intact else NO


def _lines(result: dict[str, Any]) -> list[str]:
    rows = []
    for name, array in result["arrays"].items():
        verdict = "intact"
        if array["damaged"]:
            verdict = f"damaged in {array['damaged']} place{'s' * (array['damaged'] != 1)}"
        chunks = f"{array['chunks']} chunk{'s' * (array['chunks'] != 1)}"
        rows.append([f"{name}:", f"{array['bytes']} bytes in {chunks}, {verdict}"])
    verdict = f"{result['file']}{': intact' if result['intact'] else ' is damaged'}"
    return ["header: matches its checksum", *common.table(rows, 2), verdict]
