"""``ooc-fw certify``: the exact duality gap of any model over the data it was trained on."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import common
from ooc_fw.options import TrainOptions
from ooc_fw.report.progress import RowProgress
from ooc_fw.system.errors import InputError

if TYPE_CHECKING:
    from ooc_fw.certificate.sweep import Certificate
    from ooc_fw.model.record import Model

FIELDS = ("certified_gap", "pair_gap", "objective", "rho", "n_violators")


def add_commands(commands: common.Commands) -> None:
    """Declare the command."""
    parser = commands.add("certify", run)
    common.add_model(parser)
    common.add_data(parser)
    common.add_options(parser, TrainOptions, ["tol"])
    common.add_work(parser)
    common.add_results(parser)


def run(args: argparse.Namespace) -> int:
    """Exact duality gap of a model over its training data.

    Pass over the training data once and print the relative duality gap. The exit status is 0 if
    it is at most the tolerance, 1 if it is larger.
    """
    from ooc_fw.model.record import load_model

    model = load_model(args.model)
    found = [
        {name: getattr(certificate, name) for name in FIELDS}
        for certificate in certify_model(model, args)
    ]
    worst: dict[str, Any] = max(found, key=lambda fields: fields["certified_gap"])
    result, lines = worst, common.aligned(worst)
    if len(found) > 1:
        classifiers = [
            {"negative": own.negative, "positive": own.positive, **fields}
            for own, fields in zip(model.classifiers, found, strict=True)
        ]
        result, lines = result | {"machines": classifiers}, lines + common.gap_lines(classifiers)
    common.print_result(args, result, lines)
    return common.DONE if worst["certified_gap"] <= args.tol else common.NO


def certify_model(model: Model, args: argparse.Namespace) -> list[Certificate]:
    """Certificate of each binary classifier over DATA, if model and data belong together."""
    from ooc_fw.certificate.sweep import Search, SupportWeights, certify
    from ooc_fw.data.labels import encode_labels
    from ooc_fw.data.rows import take_rows
    from ooc_fw.model.file import as_class_values
    from ooc_fw.model.pairs import class_pairs
    from ooc_fw.problem import Problem
    from ooc_fw.training.partition import partition_classes

    certificates = []
    with ExitStack() as stack:
        source = stack.enter_context(common.open_data(args))
        classes, codes = encode_labels(source)
        found, expected = as_class_values(classes).tolist(), model.classes.tolist()
        if found != expected:
            raise InputError(
                f"{source.name} has labels {common.format_labels(found)} but the model was trained "
                f"on {common.format_labels(expected)}; give the file it was trained on"
            )
        model.check_training_rows(source, codes)
        workers = stack.enter_context(common.open_workers(args))
        engine = stack.enter_context(model.engine(args.threads))
        pairs = class_pairs(len(classes))
        partition = stack.enter_context(partition_classes(source, codes, len(classes)))
        if len(pairs) > 1:
            workers = None  # other processes cannot read the partition
        whole = Problem(source, codes, model.kernel)
        for k, (own, classes_of_pair) in enumerate(zip(model.classifiers, pairs, strict=True)):
            pair = partition.pair(*classes_of_pair)
            label = "certify" if len(pairs) == 1 else f"certify {k + 1}/{len(pairs)}"
            vectors = take_rows(model.support_vectors, own.sv)
            C = model.C if own.C is None else own.C
            weights = SupportWeights(vectors, pair.pair_rows(own.rows), own.alpha, C)
            problem = pair.problem(whole)
            with RowProgress(label, problem.source.n_rows, quiet=args.quiet) as progress:
                certificates.append(
                    certify(problem, engine, weights, Search(args.tol), progress, workers)
                )
    return certificates
