"""``ooc-fw certify``: the exact duality gap of any model over the data it was trained on."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import arguments, common
from ooc_fw.options import TrainOptions
from ooc_fw.report.progress import RowProgress
from ooc_fw.system.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from ooc_fw.certificate.sweep import Certificate
    from ooc_fw.model.record import Model

FIELDS = ("certified_gap", "pair_gap", "objective", "rho", "n_violators")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "certify",
        help="exact duality gap of a model over its training data",
        description="Pass over the training data once and print the relative duality gap. The exit "
        "status is 0 if it is at most the tolerance, 1 if it is larger.",
    )
    arguments.add_model(parser)
    arguments.add_data(parser, text=False)
    arguments.add_options(parser, TrainOptions, ["tol"])
    arguments.add_work(parser)
    arguments.add_results(parser)


def run(args: argparse.Namespace) -> int:
    """Print the certificate, or that of the worst binary classifier and the gap of each."""
    from ooc_fw.model.record import load_model

    model = load_model(args.model)
    found = [
        {name: getattr(certificate, name) for name in FIELDS}
        for certificate in certify_model(model, args)
    ]
    worst: dict[str, Any] = max(found, key=lambda fields: fields["certified_gap"])
    classifiers = [
        {"negative": own.negative, "positive": own.positive, **fields}
        for own, fields in zip(model.classifiers, found, strict=True)
    ]
    several = {"machines": classifiers} if len(found) > 1 else {}
    lines = common.aligned(worst) + common.gap_lines(several.get("machines", ()))
    common.print_result(args, worst | several, lines)
    return common.DONE if worst["certified_gap"] <= args.tol else common.NO


def certify_model(model: Model, args: argparse.Namespace) -> list[Certificate]:
    """Certificate of each binary classifier over DATA, if model and data belong together."""
    from ooc_fw.certificate.sweep import Search, SupportWeights, certify
    from ooc_fw.data.labels import encode_labels
    from ooc_fw.data.rows import take_rows
    from ooc_fw.model.checks import check_training_rows
    from ooc_fw.model.file import as_class_values
    from ooc_fw.model.pairs import class_pairs
    from ooc_fw.problem import Problem
    from ooc_fw.training.one_versus_one import split_classes

    certificates = []
    with ExitStack() as stack:
        source = stack.enter_context(common.open_data(args))
        classes, codes = encode_labels(source)
        _check_classes(model, as_class_values(classes), source.name)
        check_training_rows(model, source, codes)
        workers = stack.enter_context(common.open_workers(args))
        engine = stack.enter_context(model.engine(args.threads))
        pairs, split = class_pairs(len(classes)), None
        if len(pairs) > 1:
            split = stack.enter_context(split_classes(source, codes, len(classes)))
            workers = None  # other processes cannot read the partition
        whole = Problem(source, codes, model.kernel)
        for k, (own, classes_of_pair) in enumerate(zip(model.classifiers, pairs, strict=True)):
            ids = own.rows
            if split is None:
                problem = whole.binary()
            else:
                pair = split.pair(*classes_of_pair)
                problem, ids = pair.problem(whole), pair.pair_rows(own.rows)
            label = "certify" if split is None else f"certify {k + 1}/{len(pairs)}"
            with RowProgress(label, problem.source.n_rows, quiet=args.quiet) as progress:
                certificates.append(
                    certify(
                        problem,
                        engine,
                        SupportWeights(
                            take_rows(model.support_vectors, own.sv),
                            ids,
                            own.alpha,
                            model.C if own.C is None else own.C,
                        ),
                        Search(args.tol),
                        progress,
                        workers,
                    )
                )
    return certificates


def _check_classes(model: Model, classes: npt.NDArray[Any], name: str) -> None:
    if classes.tolist() != model.classes.tolist():
        found, expected = (
            ", ".join(map(common.format_label, values.tolist()))
            for values in (classes, model.classes)
        )
        raise InputError(
            f"{name} has labels {found} but the model was trained on {expected}; give the file it "
            f"was trained on"
        )
