"""``ooc-fw verify``: whether a data file is still what was written.

Owns the command's options, the words of its report and its verdict. The work is done by
`ooc_fw.convert.verify`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import common
from ooc_fw.system.errors import DamageError

if TYPE_CHECKING:
    from ooc_fw.convert.verify import ArrayReport, Progress, VerifyReport

DAMAGED = 1

NO_CHECKSUMS = (
    "no checksums are stored in this file: everything could be read, but changed numbers would "
    "not be noticed"
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "verify",
        help="compare a data file with the checksums in it",
        description="Read a whole HDF5 data file and compare every array with the checksums that "
        "ooc-fw convert stored. The exit status is 0 when nothing is wrong, 1 when the file is "
        "damaged. A file without checksums is read as far as it says what it holds.",
    )
    parser.add_argument("data", metavar="DATA", help="an HDF5 file")
    parser.add_argument("--x-name", default="X", help="rows in a foreign file (default: X)")
    parser.add_argument("--y-name", default="y", help="labels in a foreign file (default: y)")
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print what was compared and what was found; returns the exit status."""
    from ooc_fw.convert.verify import verify_file

    try:
        with _progress_bar(sys.stderr.isatty() and not args.json) as progress:
            report = verify_file(
                args.data, x_name=args.x_name, y_name=args.y_name, progress=progress
            )
    except DamageError as error:
        if args.json:
            common.print_result({"file": args.data, "intact": False}, as_json=True)
        _say([str(error)])
        return DAMAGED
    if args.json:
        common.print_result(describe(report), as_json=True)
    else:
        print("\n".join(lines(report)))
    for array in report.arrays:
        _say(array.damage)
        if array.n_damaged > len(array.damage):
            _say([f"{array.n_damaged - len(array.damage)} more in {array.name}"])
    return 0 if report.intact else DAMAGED


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
    """Word what was compared, a line each."""
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


def _say(sentences: list[str] | tuple[str, ...]) -> None:
    for sentence in sentences:
        print(f"ooc-fw: {sentence}", file=sys.stderr)


@contextmanager
def _progress_bar(shown: bool) -> Iterator[Progress | None]:
    """Give a progress function that draws a bar, or None."""
    if not shown:
        yield None
        return
    from tqdm import tqdm

    with tqdm(desc="verify", unit="B", unit_scale=True, leave=False) as bar:

        def update(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield update
