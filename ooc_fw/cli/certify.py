"""``ooc-fw certify``: the exact duality gap of any model over the data it was trained on."""

from __future__ import annotations

import argparse
from functools import partial

from ooc_fw.cli import common, gaps
from ooc_fw.cli.commands import DONE, NO
from ooc_fw.cli.rows import open_model
from ooc_fw.landmarks import relative_target
from ooc_fw.model.certificate import Inquiry, certify_model
from ooc_fw.report.progress import Waiting


def run(args: argparse.Namespace) -> int:
    """Measure the duality gap of a model over its training data."""
    model = open_model(args)
    exact = model.kind == "exact"
    show = partial(Waiting, quiet=args.quiet)
    how = {"threads": args.threads, "dask": args.dask, "exact_kernel": args.exact_kernel}
    with common.open_data(args, model=model) as source:
        found = certify_model(model, source, Inquiry(tol=args.tol, show=show, **how))
    gap = found.certified_gap
    result = {"certified_gap": gap, "gap_scope": found.gap_scope, **found.worst}
    if model.n_weighted is not None:
        result["n_weighted"] = model.n_weighted
    if not exact:
        result["n_support"] = len(model.support_vectors)
    lines = common.aligned(gaps.with_scope(result))
    if len(found.classifiers) > 1:
        result["classifiers"] = [
            {"negative": classifier.negative, "positive": classifier.positive, **fields}
            for classifier, fields in zip(model.classifiers, found.classifiers, strict=True)
        ]
        lines += gaps.gap_lines(result["classifiers"])
    # The gap of landmarks is a share of the objective: that which the tolerance allows bounds it.
    tol = args.tol if exact else relative_target(args.tol)
    result |= {"tol": tol, "reached": found.worst["certified_gap"] <= tol}
    common.print_result(args, result, lines)
    return DONE if result["reached"] else NO
