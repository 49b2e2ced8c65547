"""``ooc-fw certify``: the exact duality gap of any model over the data it was trained on."""

from __future__ import annotations

import argparse
from functools import partial

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE, NO
from ooc_fw.landmarks import relative_target
from ooc_fw.model.record import load_model
from ooc_fw.report.progress import RowProgress
from ooc_fw.system.errors import InputError


def run(args: argparse.Namespace) -> int:
    """Measure the duality gap of a model over its training data."""
    model = load_model(args.model)
    common.warn_of_checkpoint(args.model, model)
    exact = model.kind == "exact"
    if exact and args.exact_kernel:
        raise InputError(
            f"the gap of the exact model {args.model} is that of the exact kernel already; leave "
            f"out --exact-kernel"
        )
    # This loads scipy.linalg, which other commands can do without.
    from ooc_fw.model.certificate import Inquiry, certify_model

    asked = Inquiry(
        tol=args.tol,
        threads=args.threads,
        dask=args.dask,
        exact_kernel=args.exact_kernel,
        show=partial(RowProgress, quiet=args.quiet),
    )
    n_weighted = model.n_weighted
    with common.open_data(args, model=model) as source:
        found = certify_model(model, source, asked)
    certificates, worst, scope = found.classifiers, found.worst, found.gap_scope
    result = {"certified_gap": found.certified_gap, "gap_scope": scope, **worst}
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
