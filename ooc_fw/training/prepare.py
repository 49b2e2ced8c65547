"""From rows and options to a problem that can be trained, the same for every task: `prepare`.

subtract offsets from columns that float32 would merge
leave out the rows of weight 0
read labels or targets, unless no model of them fits into memory
give each row its penalty, and gamma its number

Tasks differ in the answers to learn and in the problem. To add one, add a branch to `_answers`,
a problem to `_PROBLEMS`, and what `ooc_fw.training.fit` says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw.data.labels import are_missing, encode_labels, iter_labels, read_targets
from ooc_fw.data.offsets import without_offsets
from ooc_fw.data.rows import Float64Array, Int64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.data.statistics import sigma2, variance
from ooc_fw.data.views import SubsetSource
from ooc_fw.kernels.functions import Kernel, make_kernel, resolve_gamma
from ooc_fw.options import START_ROWS, ModelOptions
from ooc_fw.problem import (
    ClassificationProblem,
    ClassWeight,
    NoveltyProblem,
    Part,
    RegressionProblem,
    check_sample_weight,
    class_factors,
    classifiers_of,
    row_penalties,
)
from ooc_fw.solver.plan import Session, warn_of_gamma
from ooc_fw.solver.surroundings import Deadline
from ooc_fw.system.errors import InputError, OutOfTimeError, format_words
from ooc_fw.system.memory import measure_program
from ooc_fw.training.choice import check_memory, check_options
from ooc_fw.training.gamma import find_gamma, is_free

logger = logging.getLogger(__name__)

_GAMMA_TIME = 0.03  # share of a time limit for the search of gamma

_PROBLEMS: dict[str, tuple[type, tuple[str, ...]]] = {
    "classification": (ClassificationProblem, ("probability",)),
    "novelty": (NoveltyProblem, ("contamination",)),
    "regression": (RegressionProblem, ("epsilon",)),
}
"""Problem of each task, and its options that are fields of the problem."""


class Weights(NamedTuple):
    """Factors of C; the products count, and None is 1 for all."""

    classes: ClassWeight = None  # by label
    # (n_rows,): weights, or a mask. Rows of weight 0 are left out.
    rows: npt.ArrayLike | None = None


class Prepared(NamedTuple):
    """A problem, and what was learned with it."""

    problem: Any
    threads: int  # that fit into memory for statistics of the rows
    class_factors: Float64Array  # factor of C of each class
    words: str  # how gamma was found


def prepare(
    source: RowSource,
    task: str,
    options: ModelOptions,
    weights: Weights | None = None,
    session: Session | None = None,
    on_rows: Callable[[int], None] | None = None,
) -> Prepared:
    """Make the problem of a task: reads labels, and rows if gamma depends on them.

    `on_rows` receives the number of rows whose statistics are known.

    InputError for labels, weights or options that do not fit; OverLimitError if no model fits into
    memory; OutOfTimeError if the time is over.
    """
    check_options(task, options)
    session = session or Session()
    weights = weights or Weights()
    whole = without_offsets(source, options.kernel)
    rows, of_rows = _weights_of_rows(source, weights.rows, options.C)
    learned = whole if rows is None else SubsetSource(whole, rows)
    with learned.limited(session.deadline(options).check):
        weighted = weights.classes is not None or of_rows is not None
        answers, threads = _answers(task, learned, options, weighted=weighted)
        classes = answers.get("class_labels", np.zeros(1))
        codes = answers.get("codes", np.zeros(learned.n_rows, dtype=np.int8))
        given = classes, codes, weights.classes, of_rows
        where = {"threads": threads, "dask": session.dask, "on_rows": on_rows}
        kernel = kernel_for(learned, options, task, **where)
        size = f"{learned.n_rows} rows, {learned.n_features} features"
        logger.info("%s: %s, %s", learned.name, size, kernel.to_dict())
        warn_of_gamma(learned, kernel)
    kind, names = _PROBLEMS[task]
    answers |= {name: getattr(options, name) for name in names}
    penalties = row_penalties(options.C, *given)
    part = None if rows is None else Part(rows, whole.n_rows)
    problem = kind(source=learned, kernel=kernel, penalties=penalties, part=part, **answers)
    words = ""
    if task == "classification" and is_free(kernel, options):
        share = None if options.max_time is None else _GAMMA_TIME * options.max_time
        check = Deadline(share, time.perf_counter()).check
        try:
            kernel, words = find_gamma(problem, options.C, options.seed, check)
            problem = replace(problem, kernel=kernel)
        except OutOfTimeError:
            words = f"gamma {problem.kernel.gamma:.4g}: auto, there is no time to try others"
        if words:
            logger.info("%s", words)
    return Prepared(problem, threads, class_factors(*given), words)


def stored_weights(source: RowSource) -> Float64Array | None:
    """Weights of the rows in their file; None if they have none."""
    weights = source.beside.get("weight")
    return None if weights is None else np.asarray(weights[0 : source.n_rows])


def _weights_of_rows(
    source: RowSource, given: npt.ArrayLike | None, C: float
) -> tuple[Int64Array | None, Float64Array | None]:
    """Numbers of the rows with a weight, or None for all; their weights, or None if all weigh 1.

    Weights are those in the file, of which a mask may take some, or those that are given.
    """
    stored = stored_weights(source)
    is_mask = given is not None and np.asarray(given).dtype == bool
    if stored is not None and given is not None and not is_mask:
        raise InputError(
            f"{source.name} has weights of rows already (convert --weight); leave out sample_weight"
        )
    if stored is not None:
        given = np.where(np.asarray(given), stored, 0.0) if is_mask else stored
    if given is None:
        return None, None
    weights = check_sample_weight(given, source.n_rows, C)
    rows = None if weights.all() else np.flatnonzero(weights)
    if is_mask and stored is None:
        return rows, None
    return rows, weights if rows is None else weights[rows]


def _answers(
    task: str, source: RowSource, options: ModelOptions, *, weighted: bool
) -> tuple[dict[str, Any], int]:
    """Read labels or targets, as fields of the problem; also the number of threads for statistics.

    OverLimitError if no model will fit into memory.
    """
    measure_program(source.decoded_bytes if source.in_memory else 0)
    if task == "novelty":
        _warn_of_labels(source)
        return {}, check_memory(source, options, weighted=weighted)
    if task == "regression":
        fewest = source.n_rows if options.exact else options.landmarks or START_ROWS
        asked = replace(options, exact=False, landmarks=max(fewest, START_ROWS))
        threads = check_memory(source, asked, weighted=True)
        return {"targets": read_targets(source)}, threads
    if source.n_rows > 1 << 22:  # so many labels may exceed the limit by themselves
        check_memory(source, options, weighted=weighted)
    classes, codes = encode_labels(source, least=2)
    counts = np.bincount(codes)
    if options.probability and counts.min() < 2:
        raise InputError(
            f"probabilities need two rows of each class, one to train on and one to hold out, but "
            f"the class {classes.names[counts.argmin()]} has one only; leave out this class or the "
            f"probabilities"
        )
    n_classifiers = classifiers_of(len(classes))
    threads = check_memory(source, options, n_classifiers=n_classifiers, weighted=weighted)
    return {"codes": codes, "class_labels": classes.values}, threads


def _warn_of_labels(source: RowSource) -> None:
    """Warn if rows of a novelty model, which are all ordinary to it, have several labels."""
    found: set[Any] = set()
    for _, labels in iter_labels(source) if source.has_labels and not source.targets else ():
        found.update(labels[~are_missing(labels)].tolist())
        if len(found) > 1:
            words = "all rows of %s are learned as ordinary, though they have several labels (%s): "
            words += "--ordinary LABEL learns those of one (in Python give others sample_weight 0)"
            logger.warning(words, source.name, format_words(sorted(found)))
            return


def kernel_for(
    source: RowSource, options: ModelOptions, task: str = "classification", **where: Any
) -> Kernel:
    """The kernel of the options; the rules for gamma look at the rows.

    `where` takes `dask` and `on_rows`, as `ooc_fw.data.statistics.sigma2` does.
    """
    where = {"threads": options.threads, **where}
    average, spread = (partial(find, source, **where) for find in (sigma2, variance))
    name = options.kernel
    gamma = resolve_gamma(name, options.gamma, average, source.n_features, spread, task)
    return make_kernel(name, gamma=gamma, degree=options.degree, coef0=options.coef0)
