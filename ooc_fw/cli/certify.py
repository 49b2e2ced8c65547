"""``ooc-fw certify``: the exact duality gap of any model over the data it was trained on.

Owns the check that model and data belong together and the verdict. The sweep is
`ooc_fw.certify.sweep`.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import common
from ooc_fw.report.progress import RowProgress
from ooc_fw.system.errors import InputError

if TYPE_CHECKING:
    from ooc_fw.certify.sweep import Certificate
    from ooc_fw.model.record import Model


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
        "--tol", type=common.POSITIVE, default=1e-3, help="relative tolerance (default: 0.001)"
    )
    common.add_threads_argument(parser)
    common.add_dask_argument(parser)
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the certificate, or that of the worst machine and each."""
    from ooc_fw.model.record import load_model

    model = load_model(args.model)
    found = [_fields(certificate) for certificate in certify_model(model, args)]
    result: dict[str, Any] = max(found, key=lambda fields: fields["certified_gap"])
    if len(found) > 1:
        result = dict(result)
        result["machines"] = [
            {"negative": machine.negative, "positive": machine.positive, **fields}
            for machine, fields in zip(model.machines, found, strict=True)
        ]
    if args.json:
        common.print_result(result, as_json=True)
    else:
        machines = result.pop("machines", ())
        common.print_result(result, as_json=False)
        common.print_machines(machines)
    return 0 if result["certified_gap"] <= args.tol else 1


def _fields(certificate: Certificate) -> dict[str, Any]:
    names = ("certified_gap", "pair_gap", "objective", "rho", "n_violators")
    return {name: getattr(certificate, name) for name in names}


def certify_model(model: Model, args: argparse.Namespace) -> list[Certificate]:
    """Certificate of each machine over DATA, after checking that model and data belong together."""
    import numpy as np

    from ooc_fw.certify.sweep import certify
    from ooc_fw.data.labels import encode_labels
    from ooc_fw.data.rows import take_rows
    from ooc_fw.model.pairs import class_pairs
    from ooc_fw.model.record import as_class_values
    from ooc_fw.training.one_versus_one import split_classes

    threads = common.thread_count(args)
    with common.open_data(args) as source:
        classes, codes = encode_labels(source)
        classes = as_class_values(classes)
        if not np.array_equal(classes, model.classes):
            found, expected = (
                ", ".join(common.format_label(value.item()) for value in values)
                for values in (classes, model.classes)
            )
            raise InputError(
                f"{source.name} has labels {found} but the model was trained on {expected}; "
                "give the file it was trained on"
            )
        model.check_training_rows(source, codes)
        certificates = []
        with ExitStack() as stack:
            workers = stack.enter_context(common.open_workers(args))
            engine = stack.enter_context(model.engine(threads))
            n_classes = len(classes)
            split = None
            if n_classes > 2:
                split = stack.enter_context(split_classes(source, codes, n_classes))
                workers = None  # the rows set apart are not seen by other processes
            pairs = class_pairs(n_classes)
            for k, (machine, (negative, positive)) in enumerate(
                zip(model.machines, pairs, strict=True)
            ):
                rows, y, ids = source, (2 * codes - 1).astype(np.int8), machine.rows
                if split is not None:
                    rows, y = split.pair(negative, positive)
                    ids = split.pair_rows(rows, negative, positive, machine.rows, machine.labels)
                label = "certify" if split is None else f"certify {k + 1}/{len(pairs)}"
                with RowProgress(label, rows.n_rows) as progress:
                    certificates.append(
                        certify(
                            rows,
                            y,
                            engine,
                            model.C if machine.C is None else machine.C,
                            rows=take_rows(model.support_vectors, machine.sv),
                            row_ids=ids,
                            alpha=machine.alpha,
                            tol=args.tol,
                            on_block=progress,
                            dask=workers,
                        )
                    )
        return certificates
