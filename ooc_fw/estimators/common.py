"""What all estimators share: parameters, checked inputs, files of a run."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data

from ooc_fw.data.parallel import Workers
from ooc_fw.data.rows import Float64Array, Int64Array, Rows
from ooc_fw.data.sources import RowSource, SubsetSource
from ooc_fw.data.sources.annotated import is_annotated
from ooc_fw.data.sources.chunked import is_chunked
from ooc_fw.data.sources.dispatch import names_of_frame
from ooc_fw.data.sources.views import ranges_of
from ooc_fw.data.statistics import sigma2, variance
from ooc_fw.kernels.functions import Kernel, KernelFunction, make_kernel, resolve_gamma
from ooc_fw.kernels.given import GivenKernel
from ooc_fw.model.record import Model, borrow_source
from ooc_fw.options import DURATION, Option, TrainOptions, option_fields
from ooc_fw.report.progress import EventLog, Progress
from ooc_fw.solver.checkpoint import CheckpointPlan, load_checkpoint
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs
from ooc_fw.system.groups import cpu_count
from ooc_fw.training.penalties import check_sample_weight

PathLike: TypeAlias = str | os.PathLike[str]

logger = logging.getLogger(__name__)

_CHECKED_ROWS = 64
"""Rows on which a kernel that is a function is looked at before training."""


class Trainer(BaseEstimator):
    """Parameters of training, and what follows from them."""

    kernel: str | KernelFunction
    gamma: float | str
    degree: int
    coef0: float
    n_jobs: int | None
    random_state: int | np.random.RandomState | None
    verbose: int

    dask: str | None
    model_: Model

    @property
    def support_vectors_(self) -> Rows:
        """Support vectors, shape (n_support, n_features)."""
        return self.model_.support_vectors

    @property
    def certified_gap_(self) -> float | None:
        """Certified relative duality gap, of the worst binary classifier; None when unknown."""
        return self.model_.certified_gap

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model file that ``ooc-fw predict`` and `ooc_fw.load_model` read."""
        check_is_fitted(self)
        self.model_.save(path)

    def _decide(self, X: Any, labels_only: bool = False) -> Float64Array:
        """Decision values as the model gives them."""
        check_is_fitted(self)
        dask = self.dask if is_out_of_core(X) else None
        X, columns = self._checked(X, reset=False)
        with borrow_source(X, columns=columns) as source:
            return self.model_.decision_function(
                source, threads=threads_of(self.n_jobs), dask=dask, labels_only=labels_only
            )

    def _checked(self, X: Any, *y: Any, reset: bool = True, **checks: Any) -> tuple[Any, ...]:
        """Rows, and labels if any, as scikit-learn checks those in RAM, and names of the features.

        scikit-learn demands that frames come with the columns of the frame of `fit`, in their
        order. Columns of a frame are found by name after a `fit` on anything else with names.
        """
        names: Sequence[str] | None = names_of_frame(X)
        in_order = reset or hasattr(self, "feature_names_in_")
        by_name = names is not None and not in_order and self.model_.columns is not None
        if by_name or is_out_of_core(X):
            if reset:
                self.__dict__.pop("feature_names_in_", None)
            return X, *(column_or_1d(own, warn=True) if is_array(own) else own for own in y), None
        checks = {"accept_sparse": "csr", "dtype": "numeric", "reset": reset, **checks}
        found = validate_data(self, X, *y, **checks)
        if not reset and in_order:
            names = self.model_.columns
        return *(found if y else [found]), names

    def __sklearn_is_fitted__(self) -> bool:
        """A first call that failed may have left attributes of the data, but no model."""
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _options(self) -> TrainOptions:
        names = option_fields(TrainOptions)
        given = {name: value for name, value in self.get_params(False).items() if name in names}
        return TrainOptions(**given, seed=_seed(self.random_state), threads=threads_of(self.n_jobs))

    def _kernel(
        self, source: RowSource, options: TrainOptions, workers: Workers | None = None
    ) -> Kernel:
        average, spread = (
            partial(find, source, options.threads, dask=workers) for find in (sigma2, variance)
        )
        gamma = resolve_gamma(self.kernel, self.gamma, average, source.n_features, spread)
        kernel = make_kernel(self.kernel, gamma=gamma, degree=self.degree, coef0=self.coef0)
        if isinstance(kernel, GivenKernel):
            places = np.unique(np.linspace(0, source.n_rows - 1, _CHECKED_ROWS, dtype=np.int64))
            kernel.check(source.take(places))
            logger.warning(
                "kernel values come from the function %s, in Python and block by block: expect "
                "many times the seconds of a kernel that is called by its name",
                kernel.function_name,
            )
        return kernel

    def _progress(self, options: TrainOptions, log: EventLog | None = None) -> Progress:
        tol = options.tol if options.stopping == "relative" else None
        return Progress(quiet=not self.verbose, tol=tol, log=log)


@dataclass(frozen=True)
class RunFiles:
    """Files that a run writes and reads beside its data."""

    checkpoint: CheckpointPlan | None
    resume: PathLike | None
    log: PathLike | None

    @classmethod
    def of(
        cls,
        checkpoint: PathLike | None,
        every: float | str,
        resume: PathLike | None,
        log: PathLike | None,
        inputs: Sequence[Any],
    ) -> RunFiles:
        """Checked arguments of `fit`; no output may be one of the inputs."""
        given = [path for path in inputs if isinstance(path, str | os.PathLike)]
        outputs = [] if log is None else [Output("log", os.fspath(log), streamed=True)]
        check_outputs(outputs, [None if resume is None else os.fspath(resume)])
        plan = None
        if checkpoint is not None:
            outputs.append(Output("checkpoint", os.fspath(checkpoint)))
            every_s = Option("checkpoint_every", **DURATION).check("checkpoint_every", every)
            plan = CheckpointPlan(checkpoint, every_s)
        check_outputs(outputs, given)
        return cls(plan, resume, log)

    def seeded(self, options: TrainOptions, random_state: Any) -> TrainOptions:
        """Options with the seed of the run that is resumed, where no other was asked for."""
        if self.resume is None or random_state is not None:
            return options
        identity, _ = load_checkpoint(self.resume)
        return replace(options, seed=identity["options"]["seed"])

    def open_log(
        self, source: RowSource, kernel: Kernel, options: TrainOptions, class_weight: Any = None
    ) -> EventLog | None:
        """The log, if there is one, begun with what is known of the run."""
        if self.log is None:
            return None
        return EventLog.begin(
            os.fspath(self.log),
            resume=None if self.resume is None else os.fspath(self.resume),
            data=source.name,
            class_weight=class_weight,
            n_rows=source.n_rows,
            n_features=source.n_features,
            kernel=kernel.to_dict(),
            options=asdict(options),
        )


def is_out_of_core(X: Any) -> bool:
    """Whether `X` is read block by block, rather than checked as a whole by scikit-learn."""
    package = type(X).__module__.partition(".")[0]
    on_disk = isinstance(X, str | os.PathLike | np.memmap | RowSource) or is_annotated(X)
    return on_disk or package in ("h5py", "dask", "zarr") or is_chunked(X)


def is_array(y: Any) -> bool:
    """Whether labels are values in RAM, rather than in a file."""
    return not (y is None or (is_out_of_core(y) and not isinstance(y, np.memmap)))


def rows_of_weight(
    source: RowSource, sample_weight: npt.ArrayLike | None, C: float
) -> tuple[RowSource, Float64Array | None, Int64Array | None]:
    """Rows whose weight is not 0, their weights, and their numbers where they are not all rows.

    `C` is what the weights are to be multiplied by.
    """
    if sample_weight is None:
        return source, None, None
    weights = check_sample_weight(sample_weight, source.n_rows, C)
    if weights.all():
        return source, weights, None
    kept = np.flatnonzero(weights)
    return SubsetSource(source, ranges_of(kept)), weights[kept], kept


def threads_of(n_jobs: int | None) -> int:
    """Count threads by scikit-learn's convention."""
    if n_jobs is None:
        return 1
    if n_jobs == 0:
        raise InputError("n_jobs must be a positive number, -1 for all CPUs, or None, not 0")
    return n_jobs if n_jobs > 0 else max(1, cpu_count() + 1 + n_jobs)


def _seed(random_state: int | np.random.RandomState | None) -> int:
    """Seed for the solver: an integer as it is, else a draw from the generator."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
