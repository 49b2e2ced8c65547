"""``ooc-fw certify``: the exact duality gap of any model over the data it was trained on.

Owns the check that model and data belong together and the verdict. The sweep is
`ooc_fw.certificate`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ooc_fw.cli import common
from ooc_fw.errors import InputError
from ooc_fw.progress import RowProgress

if TYPE_CHECKING:
    from ooc_fw.certificate import Certificate
    from ooc_fw.model import Model


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "certify",
        help="exact duality gap of a model over its training data",
        description="Sweep the training data once and print the relative duality gap. The exit "
        "status is 0 when it is at most the tolerance, 1 when it is larger.",
    )
    parser.add_argument("model", metavar="MODEL", help="file written by ooc-fw train")
    common.add_data_arguments(parser, text=False)
    parser.add_argument(
        "--tol", type=float, default=1e-3, help="relative tolerance (default: 0.001)"
    )
    common.add_threads_argument(parser)
    common.add_dask_argument(parser)
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the certificate."""
    from ooc_fw.model import load_model

    certificate = certify_model(load_model(args.model), args)
    result = {
        "certified_gap": certificate.certified_gap,
        "pair_gap": certificate.pair_gap,
        "objective": certificate.objective,
        "rho": certificate.rho,
        "n_violators": certificate.n_violators,
    }
    common.print_result(result, as_json=args.json)
    return 0 if certificate.certified_gap <= args.tol else 1


def certify_model(model: Model, args: argparse.Namespace) -> Certificate:
    """Certificate of `model` over DATA, after checking that they belong together."""
    import numpy as np

    from ooc_fw.certificate import certify
    from ooc_fw.rows import take_rows

    threads = common.thread_count(args)
    (machine,) = model.machines
    with common.open_data(args) as source:
        classes, y = common.binary_labels(source)
        if not np.array_equal(classes, model.classes):
            found, expected = (
                " and ".join(common.format_label(value) for value in values)
                for values in (classes, model.classes)
            )
            raise InputError(
                f"{source.name} has labels {found} but the model was trained on {expected}; "
                "give the file it was trained on"
            )
        model.check_training_rows(source, y)
        with (
            common.open_workers(args) as workers,
            model.engine(threads) as engine,
            RowProgress("certify", source.n_rows) as progress,
        ):
            return certify(
                source,
                y,
                engine,
                model.C,
                rows=take_rows(model.support_vectors, machine.sv),
                row_ids=machine.rows,
                alpha=machine.alpha,
                tol=args.tol,
                on_block=progress,
                dask=workers,
            )
