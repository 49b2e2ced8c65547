"""``ooc-fw certify``: the exact duality gap of any model over the data it was trained on."""

from __future__ import annotations

import argparse
import math
import sys
import time
from contextlib import ExitStack
from typing import Any

import numpy as np

from ooc_fw.certificate.sweep import Search, SupportWeights, certify
from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE, NO
from ooc_fw.data.labels import encode_labels
from ooc_fw.data.rows import Int64Array, take_rows
from ooc_fw.data.sources import RowSource
from ooc_fw.kernels.engine import Engine
from ooc_fw.landmarks.solution import relative_gap, relative_target
from ooc_fw.model.file import as_class_values
from ooc_fw.model.pairs import class_pairs
from ooc_fw.model.record import Model, check_training_rows, load_model, training_data
from ooc_fw.problem import BinaryProblem, ClassificationProblem, RegressionProblem
from ooc_fw.report.progress import RowProgress
from ooc_fw.system.errors import InputError
from ooc_fw.training.partition import partition_classes

FIELDS = ("certified_gap", "pair_gap", "objective", "rho", "n_violators")
LANDMARK_FIELDS = ("certified_gap", "primal", "dual")
_SAME = 1e-6  # relative difference of bounds that differ by rounding


def run(args: argparse.Namespace) -> int:
    """Exact duality gap of a model over its training data."""
    model = load_model(args.model)
    exact = model.kind == "exact"
    if exact and args.exact_kernel:
        raise InputError(
            f"the gap of the exact model {args.model} is that of the exact kernel already; leave "
            f"out --exact-kernel"
        )
    found = certify_model(model, args) if exact else certify_span(model, args)
    scope = {"gap_scope": model.gap_scope}
    for fields in found:  # all have the same
        scope["gap_scope"] = fields.pop("gap_scope", model.gap_scope)
    worst: dict[str, Any] = max(found, key=lambda fields: fields["certified_gap"])
    gap = {"certified_gap": worst["certified_gap"]}
    result = gap | scope | worst | ({} if exact else {"n_support": len(model.support_vectors)})
    lines = common.aligned(common.with_scope(result))
    if len(found) > 1:
        classifiers = [
            {"negative": own.negative, "positive": own.positive, **fields}
            for own, fields in zip(model.classifiers, found, strict=True)
        ]
        result["machines"] = classifiers
        lines += common.gap_lines(classifiers)
    common.print_result(args, result, lines)
    tol = args.tol if exact else relative_target(args.tol)
    return DONE if worst["certified_gap"] <= tol else NO


def certify_span(model: Model, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Objectives and gap of each binary classifier of a landmark model over DATA.

    An exact regression has the gap to the optimum over all rows that training gave it: its file
    holds that bound, which no landmarks that were chosen from more rows attain.
    """
    # These load scipy.linalg, which exact models can do without.
    from ooc_fw.model.certificate import certify_landmarks, regression_problem
    from ooc_fw.training.regression import EXACT_ROWS

    with ExitStack() as stack:
        model, source = training_data(model, stack.enter_context(common.open_data(args)))
        problem: ClassificationProblem | RegressionProblem
        if model.task == "regression":
            problem = regression_problem(model, source)
        else:
            codes = _codes(model, source)
            problem = ClassificationProblem(source, codes, model.kernel, class_labels=model.classes)
        workers = stack.enter_context(common.open_workers(args))
        engine = stack.enter_context(model.engine(args.threads, sparse=source.sparse))
        progress = RowProgress("certify", source.n_rows, quiet=args.quiet)
        on_block = stack.enter_context(progress)
        began = time.perf_counter()
        certificate = certify_landmarks(model, problem, engine, dask=workers, on_block=on_block)
        scope = "span"
        if model.task == "regression" and source.n_rows <= EXACT_ROWS:
            optimum = certificate.to_the_optimum(engine, workers)
            known = getattr(model.classifiers[0], "dual", None)
            if known is not None and known <= optimum.dual[0] * (1 + _SAME):
                certificate, scope = optimum, "all"
        columns = {name: getattr(certificate, name) for name in LANDMARK_FIELDS}
        columns["gap_scope"] = np.full(len(certificate.dual), scope)
        if args.exact_kernel:
            n, view = len(model.support_vectors) * source.n_rows, certificate.exact_kernel
            _announce(view.n_evaluations, n / (time.perf_counter() - began), args.quiet)
            total = view.n_evaluations
            bar = RowProgress("exact kernel", total, quiet=args.quiet, unit="kernel values")
            told = stack.enter_context(bar)
            dual = view.dual(engine, workers, lambda share: told(round(share * total)))
            columns["exact_kernel_dual"] = dual
            columns["exact_kernel_gap"] = relative_gap(certificate.primal, dual)
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _announce(n_evaluations: int, speed: float, quiet: bool) -> None:
    """Say what the exact kernel costs, before it is paid."""
    if not quiet:
        print(
            f"the exact kernel takes {n_evaluations:.3g} kernel values; at the speed of the pass "
            f"before, which had more digits, {n_evaluations / speed:.0f} s",
            file=sys.stderr,
        )


def certify_model(model: Model, args: argparse.Namespace) -> list[dict[str, Any]]:
    """What the certificate of each binary classifier over DATA says."""
    certificates = []
    with ExitStack() as stack:
        model, source = training_data(model, stack.enter_context(common.open_data(args)))
        codes = np.zeros(source.n_rows, dtype=np.int64)
        if not model.one_class:
            codes = _codes(model, source)
        n_classes = len(model.classes)
        check_training_rows(model, source, codes)
        workers = stack.enter_context(common.open_workers(args))
        engine = stack.enter_context(model.engine(args.threads, sparse=source.sparse))
        if model.one_class:
            return [_certify_one_class(model, source, engine, args, workers)]
        pairs = class_pairs(n_classes)
        partition = stack.enter_context(partition_classes(source, codes, n_classes))
        if len(pairs) > 1:
            workers = None  # other processes cannot read the partition
        whole = ClassificationProblem(source, codes, model.kernel)
        for k, (own, classes_of_pair) in enumerate(zip(model.classifiers, pairs, strict=True)):
            pair = partition.pair(*classes_of_pair)
            label = "certify" if len(pairs) == 1 else f"certify {k + 1}/{len(pairs)}"
            vectors = take_rows(model.support_vectors, own.sv)
            C = model.C if own.C is None else own.C
            weights = SupportWeights(vectors, pair.pair_rows(own.rows), own.alpha, C)
            problem = pair.problem(whole)
            with RowProgress(label, problem.source.n_rows, quiet=args.quiet) as progress:
                found = certify(problem, engine, weights, Search(args.tol), progress, workers)
            certificates.append({name: getattr(found, name) for name in FIELDS})
    return certificates


def _certify_one_class(
    model: Model, source: RowSource, engine: Engine, args: argparse.Namespace, workers: Any
) -> dict[str, Any]:
    """What the certificate of a one-class model says, whose labels are not looked at."""
    (own,) = model.classifiers
    labels = np.ones(source.n_rows, dtype=np.int8)
    problem = BinaryProblem(source, labels, model.kernel, one_class=True)
    vectors = take_rows(model.support_vectors, own.sv)
    weights = SupportWeights(vectors, own.rows, own.alpha, model.C if own.C is None else own.C)
    tol = args.tol * own.rho / (own.rho + 1)  # of the problem with the bias
    with RowProgress("certify", source.n_rows, quiet=args.quiet) as progress:
        found = certify(problem, engine, weights, Search(tol), progress, workers)
    certificate = found.without_bias(math.fsum(own.alpha))
    return {name: getattr(certificate, name) for name in FIELDS}


def _codes(model: Model, source: RowSource) -> Int64Array:
    """Class of each row; InputError unless the labels are those of the model."""
    classes, codes = encode_labels(source)
    found, expected = as_class_values(classes).tolist(), model.classes.tolist()
    if found != expected:
        raise InputError(
            f"{source.name} has labels {common.format_labels(found)} but the model was trained "
            f"on {common.format_labels(expected)}; give the file it was trained on"
        )
    return codes
