"""``ooc-fw certify``: the exact duality gap of any model over the data it was trained on."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any, TypeAlias

import numpy as np

from ooc_fw.certificate.sweep import Search, SupportWeights, certify
from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE, NO
from ooc_fw.data.labels import encode_labels
from ooc_fw.data.parallel import Workers
from ooc_fw.data.rows import Int64Array, take_rows
from ooc_fw.data.sources import RowSource
from ooc_fw.kernels.engine import Engine
from ooc_fw.landmarks import relative_gap, relative_target
from ooc_fw.model.file import as_class_values
from ooc_fw.model.pairs import class_pairs
from ooc_fw.model.record import Model, check_training_rows, load_model, training_data
from ooc_fw.problem import BinaryProblem, ClassificationProblem, NoveltyProblem, RegressionProblem
from ooc_fw.report.progress import RowProgress
from ooc_fw.system.errors import InputError
from ooc_fw.training.partition import partition_classes
from ooc_fw.training.regression import EXACT_ROWS

FIELDS = ("certified_gap", "pair_gap", "objective", "rho", "n_violators")
LANDMARK_FIELDS = ("certified_gap", "primal", "dual")
_SAME = 1e-6  # relative difference of bounds that differ by rounding

Certificates: TypeAlias = tuple[str, list[dict[str, Any]]]
"""What gaps are compared with, and what is known of each binary classifier."""


def run(args: argparse.Namespace) -> int:
    """Measure the duality gap of a model over its training data."""
    model = load_model(args.model)
    exact = model.kind == "exact"
    if exact and args.exact_kernel:
        raise InputError(
            f"the gap of the exact model {args.model} is that of the exact kernel already; leave "
            f"out --exact-kernel"
        )
    with ExitStack() as stack:
        n_weighted = model.n_weighted
        model, source = training_data(
            model, stack.enter_context(common.open_data(args, model=model))
        )
        classified = model.task == "classification"
        codes = _codes(model, source) if classified else np.zeros(source.n_rows, dtype=np.int64)
        workers = stack.enter_context(common.open_workers(args))
        engine = stack.enter_context(model.engine(args.threads, sparse=source.sparse))
        bound = certify_exact if exact else certify_span
        scope, certificates = bound(args, model, source, codes, engine, workers)
    worst = max(certificates, key=lambda fields: fields["certified_gap"])
    result = {"certified_gap": worst["certified_gap"], "gap_scope": scope, **worst}
    if n_weighted is not None:
        result["n_weighted"] = n_weighted
    if not exact:
        result["n_support"] = len(model.support_vectors)
    lines = common.aligned(common.with_scope(result))
    if len(certificates) > 1:
        result["classifiers"] = [
            {"negative": classifier.negative, "positive": classifier.positive, **fields}
            for classifier, fields in zip(model.classifiers, certificates, strict=True)
        ]
        lines += common.gap_lines(result["classifiers"])
    if not (args.quiet or args.json):
        words = common.gap_in_words(worst["certified_gap"], model.kind, scope, certified=True)
        common.print_lines(words)
    # The gap of landmarks is a share of the objective: that which the tolerance allows bounds it.
    tol = args.tol if exact else relative_target(args.tol)
    result |= {"tol": tol, "reached": worst["certified_gap"] <= tol}
    common.print_result(args, result, lines)
    return DONE if result["reached"] else NO


def _codes(model: Model, source: RowSource) -> Int64Array:
    """Class of each row; InputError unless the labels are those of the model."""
    classes, codes = encode_labels(source)
    labels, expected = as_class_values(classes).tolist(), model.classes.tolist()
    if labels != expected:
        raise InputError(
            f"{source.name} has labels {common.format_labels(labels)} but the model was trained "
            f"on {common.format_labels(expected)}; give the file it was trained on"
        )
    return codes


def certify_exact(
    args: argparse.Namespace,
    model: Model,
    source: RowSource,
    codes: Int64Array,
    engine: Engine,
    workers: Workers | None,
) -> Certificates:
    """Certificates of the pairs of classes, or of one class, of a model over its rows."""
    check_training_rows(model, source, codes)
    pairs = class_pairs(len(model.classes))
    certificates = []
    with ExitStack() as stack:
        partition = None
        if model.task != "novelty":
            whole = ClassificationProblem(source, codes, model.kernel, class_labels=model.classes)
            partition = stack.enter_context(partition_classes(whole))
        if len(pairs) > 1:
            workers = None  # other processes cannot read the partition
        for k, (classifier, classes) in enumerate(zip(model.classifiers, pairs, strict=True)):
            tol, rows = args.tol, classifier.rows
            if partition is None:
                labels = np.ones(source.n_rows, dtype=np.int8)
                problem = BinaryProblem(source, labels, model.kernel, one_class=True)
                tol = tol * classifier.rho / (classifier.rho + 1)  # of the problem with the bias
            else:
                pair = partition.pair(*classes)
                problem, rows = pair.problem, pair.pair_rows(rows)
            vectors = take_rows(model.support_vectors, classifier.sv)
            C = model.C if classifier.C is None else classifier.C
            weights = SupportWeights(vectors, rows, classifier.alpha, C)
            label = "certify" if len(pairs) == 1 else f"certify {k + 1}/{len(pairs)}"
            with RowProgress(label, problem.source.n_rows, quiet=args.quiet) as progress:
                certificate = certify(problem, engine, weights, Search(tol), progress, workers)
            if model.task == "novelty":
                certificate = certificate.without_bias()
            certificates.append({name: getattr(certificate, name) for name in FIELDS})
    return model.gap_scope, certificates


def certify_span(
    args: argparse.Namespace,
    model: Model,
    source: RowSource,
    codes: Int64Array,
    engine: Engine,
    workers: Workers | None,
) -> Certificates:
    """Objectives and gaps of the binary classifiers of a landmark model over its rows.

    An exact regression has the gap to the optimum over all rows that training gave it: its file
    holds that bound, which no landmarks that were chosen from more rows attain.
    """
    # This loads scipy.linalg, which exact models can do without.
    from ooc_fw.model.certificate import certify_landmarks, regression_problem

    problem: ClassificationProblem | RegressionProblem | NoveltyProblem
    if model.task == "regression":
        problem = regression_problem(model, source)
    elif model.task == "novelty":
        problem = NoveltyProblem(source, model.kernel)
    else:
        problem = ClassificationProblem(source, codes, model.kernel, class_labels=model.classes)
    scope = "span"
    with RowProgress("certify", source.n_rows, quiet=args.quiet) as progress:
        certificate = certify_landmarks(model, problem, engine, dask=workers, on_block=progress)
        if model.task == "regression" and source.n_rows <= EXACT_ROWS:
            optimum = certificate.to_the_optimum(engine, workers)
            known = getattr(model.classifiers[0], "dual", None)
            if known is not None and known <= optimum.dual[0] * (1 + _SAME):
                certificate, scope = optimum, "all"
    columns = {name: getattr(certificate, name) for name in LANDMARK_FIELDS}
    if args.exact_kernel:
        view = certificate.exact_kernel
        total = view.n_evaluations
        with RowProgress("exact kernel", total, quiet=args.quiet, unit="kernel values") as bar:
            dual = view.dual(engine, workers, lambda share: bar(round(share * total)))
        columns["exact_kernel_dual"] = dual
        columns["exact_kernel_gap"] = relative_gap(certificate.primal, dual)
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return scope, [dict(zip(columns, row, strict=True)) for row in values]
