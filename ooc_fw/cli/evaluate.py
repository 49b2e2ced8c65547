"""``ooc-fw evaluate``: accuracy of a model on labelled rows.

Owns the two measures. Reading rows and applying the model are `common.apply_model`.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from ooc_fw.cli import common

if TYPE_CHECKING:
    from ooc_fw.rows import Float64Array


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "evaluate",
        help="accuracy of a model on labelled rows",
        description="Compare predicted with given labels. A label the model does not know counts "
        "as wrong. Text is scaled like the training data.",
    )
    parser.add_argument("model", metavar="MODEL", help="file written by ooc-fw train")
    common.add_data_arguments(parser, text=True)
    common.add_threads_argument(parser)
    common.add_dask_argument(parser)
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print accuracy and balanced accuracy."""
    import numpy as np

    from ooc_fw.model import load_model

    started = time.perf_counter()
    model = load_model(args.model)
    values, labels = common.apply_model(model, args, with_labels=True)
    assert labels is not None
    unknown = labels[~np.isin(labels, model.classes)]
    if len(unknown):
        names = ", ".join(common.format_label(value) for value in np.unique(unknown)[:5])
        print(
            f"ooc-fw: {len(unknown)} of {len(labels)} rows in {args.data} have labels unknown to "
            f"the model ({names}); they count as wrong",
            file=sys.stderr,
        )
    accuracy, balanced_accuracy = accuracies(labels, model.label_values(values))
    result = {
        "accuracy": accuracy,
        "balanced_accuracy": balanced_accuracy,
        "n_rows": len(labels),
        "seconds": time.perf_counter() - started,
    }
    common.print_result(result, as_json=args.json)
    return 0


def accuracies(labels: Float64Array, predicted: Float64Array) -> tuple[float, float]:
    """Fraction of right rows, and its mean over the label values that occur.

    Parameters
    ----------
    labels, predicted : ndarray of shape (n_rows,), n_rows > 0
        Given and predicted label values.

    Returns
    -------
    accuracy, balanced_accuracy : float
        The second one weighs every label value alike, whatever its number of rows.
    """
    import numpy as np

    right = labels == predicted
    _, codes = np.unique(labels, return_inverse=True)
    recalls = np.bincount(codes, weights=right) / np.bincount(codes)
    return float(right.mean()), float(recalls.mean())
