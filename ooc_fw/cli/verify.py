"""``ooc-fw verify``: whether a data file still holds what was written to it."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import arguments
from ooc_fw.cli.common import DONE, NO, print_result
from ooc_fw.report.progress import RowProgress
from ooc_fw.system.errors import DamageError

if TYPE_CHECKING:
    from ooc_fw.convert.verify import ArrayReport, VerifyReport

NO_CHECKSUMS = (
    "no checksums are stored in this file: everything could be read, but changed numbers would "
    "not be noticed"
)

logger = logging.getLogger(__name__)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "verify",
        help="compare a data file with the checksums in it",
        description="Read a whole HDF5 data file and compare every array with the checksums that "
        "ooc-fw convert stored. The exit status is 0 if nothing is wrong, 1 if the file is "
        "damaged. A file without checksums is only read.",
    )
    parser.add_argument("data", metavar="DATA", help="an HDF5 file")
    parser.add_argument("--x-name", default="X", help="rows in a foreign file (default: X)")
    parser.add_argument("--y-name", default="y", help="labels in a foreign file (default: y)")
    arguments.add_results(parser)


def run(args: argparse.Namespace) -> int:
    """Compare, print what was compared and what is damaged."""
    from ooc_fw.convert.verify import verify_file

    try:
        with RowProgress("verify", unit="B", quiet=args.quiet) as progress:
            report = verify_file(
                args.data, x_name=args.x_name, y_name=args.y_name, progress=progress
            )
    except DamageError as error:
        if args.json:
            print_result(args, {"file": args.data, "intact": False})
        logger.error("%s", error)
        return NO
    print_result(args, describe(report), lines(report))
    for array in report.arrays:
        for sentence in array.damage:
            logger.error("%s", sentence)
        if array.n_damaged > len(array.damage):
            logger.error("%d more in %s", array.n_damaged - len(array.damage), array.name)
    return DONE if report.intact else NO


def describe(report: VerifyReport) -> dict[str, Any]:
    """Gather what ``--json`` prints."""
    return {
        "file": report.path,
        "file_bytes": report.n_bytes,
        "checksums": "crc32" if report.has_checksums else None,
        "intact": report.intact,
        "arrays": {
            array.name: {
                "bytes": array.n_bytes,
                "chunks": array.n_chunks,
                "damaged": array.n_damaged,
                "damage": list(array.damage),
            }
            for array in report.arrays
        },
    }


def lines(report: VerifyReport) -> list[str]:
    """Say what was compared, a line for each array."""
    width = max(len(array.name) for array in report.arrays)
    found = ["header: matches its checksum"] if report.has_checksums else []
    found += [
        f"{array.name + ':':<{width + 1}} {array.n_bytes} bytes in {array.n_chunks} "
        f"chunk{'s' * (array.n_chunks != 1)}, {_verdict(array, report.has_checksums)}"
        for array in report.arrays
    ]
    if not report.intact:
        return [*found, f"{report.path} is damaged"]
    return [*found, f"{report.path}: {'intact' if report.has_checksums else NO_CHECKSUMS}"]


def _verdict(array: ArrayReport, has_checksums: bool) -> str:
    if not has_checksums:
        return "readable"
    if not array.n_damaged:
        return "intact"
    return f"damaged in {array.n_damaged} place{'s' * (array.n_damaged != 1)}"
