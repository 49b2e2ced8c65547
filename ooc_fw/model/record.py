"""A trained model: its record, its file, and its decision function.

Owns the model file (an HDF5 image of a few megabytes, written atomically, read without running any
code) and the evaluation of a model on rows that stream past. Trains nothing and certifies nothing:
see `ooc_fw.solve.loop` and `ooc_fw.certify.sweep`.

The file holds, on its root, the attributes ``format_version, kernel, gamma, degree, coef0, C,
status, class_names`` and, where known, the scaling of the training file as `ooc_fw.data.scaling`
stores it; ``/support_vectors``, float32 rows as they stand in the training file, or a CSR group
laid out like a data file's ``/X``; and for each machine a group ``/machines/<k>`` with the fields
of `Machine`: one for two classes, else one for each pair of them (`ooc_fw.model.pairs`). Its data
set ``C`` is there only where rows have penalties of their own. One checksum, the attribute
``content_crc32``, covers all of it and is compared when the file is loaded; a file without it is
read as it is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.data.attributes import get_text, put_text
from ooc_fw.data.parallel import LocalWorkers, Shared, borrow_workers, shared_source
from ooc_fw.data.rows import (
    CSRRows,
    Float64Array,
    Int8Array,
    Int64Array,
    Rows,
    canonical_csr,
    rows_bytes,
    take_rows,
)
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import RowSource, block_slices, open_source
from ooc_fw.data.sources.checksums import CONTENT, content_crc32
from ooc_fw.data.sources.opening import H5PY_ERRORS, open_file
from ooc_fw.data.sources.storage import check_plain_tree
from ooc_fw.kernels.arithmetic import choose_arithmetic
from ooc_fw.kernels.decisions import DecisionFunctions, Weights
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import Kernel, make_kernel
from ooc_fw.model.pairs import (
    PairSolution,
    class_scores,
    is_decided,
    union_of_rows,
    worst_gap,
    worst_status,
)
from ooc_fw.model.probabilities import class_probabilities
from ooc_fw.problem import WEIGHT_SUM_TOLERANCE
from ooc_fw.system.errors import DamageError, InputError
from ooc_fw.system.files import write_atomic

if TYPE_CHECKING:
    from ooc_fw.solve.state import Solution

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
PART_BYTES = 4 << 20  # of dense rows decided at once, or sparse rows made dense
_PART_ROWS = 1 << 14  # rows decided at once: some ten numbers of each and every machine are held
_LEAST_PART_ROWS = 256
_EXACT_ROWS = 1 << 12  # rows computed in float64 at once, of which copies are made
DECISION_ACCURACY = 1e-4  # of decision values, on the scale where the margin is 1
_PROBE_VECTORS = 32  # support vectors that show whether float32 kernel values leave rows decided


@dataclass(frozen=True)
class Machine:
    """One binary machine: weights on rows of the model's support vectors.

    Parameters
    ----------
    alpha : ndarray of float64, shape (n_support,)
        Weights on the simplex.
    labels : ndarray of int8, shape (n_support,)
        -1 or +1 for each weight.
    sv : ndarray of int64, shape (n_support,)
        Positions in `Model.support_vectors`.
    rows : ndarray of int64, shape (n_support,)
        Rows of the training data as stored there.
    rho : float
        Margin; decision values are divided by it.
    objective : float
        Value of the dual, rho / 2.
    certified_gap, sampled_gap : float or None
        Relative gaps over all rows and over the rows last drawn; None when not known.
    positive, negative : float or str
        Class values of +1 and -1.
    C : ndarray of float64, shape (n_support,), or None
        Penalty of each row, where rows have their own; None is that of the model.
    sigmoid_a, sigmoid_b : float or None
        P(positive | f) = 1 / (1 + exp(a f + b)) for the decision value f; None when the machine
        was not calibrated.
    """

    alpha: Float64Array
    labels: Int8Array
    sv: Int64Array
    rows: Int64Array
    rho: float
    objective: float
    certified_gap: float | None
    sampled_gap: float | None
    positive: float | str
    negative: float | str
    C: Float64Array | None = None
    sigmoid_a: float | None = None
    sigmoid_b: float | None = None

    def __post_init__(self) -> None:
        sizes = {len(array) for array in (self.alpha, self.labels, self.sv, self.rows)}
        if self.C is not None:
            sizes.add(len(self.C))
            if not ((self.C > 0) & (self.C < np.inf)).all():
                raise InputError("C must be positive numbers")
        if len(sizes) != 1 or 0 in sizes:
            raise InputError(
                f"alpha, labels, sv, rows and C must be of one length above 0, not {sorted(sizes)}"
            )
        if not (self.alpha >= 0).all() or abs(self.alpha.sum() - 1) > WEIGHT_SUM_TOLERANCE:
            raise InputError(f"alpha must be non-negative with sum 1, not {self.alpha.sum()}")
        if not (np.abs(self.labels) == 1).all():
            raise InputError("labels must be -1 or +1")
        if not 0 < self.rho < np.inf:
            raise InputError(f"rho must be a positive number, not {self.rho}")
        if not all(np.isfinite(x) for x in (self.sigmoid_a, self.sigmoid_b) if x is not None):
            raise InputError(f"no sigmoid has a {self.sigmoid_a} and b {self.sigmoid_b}")


ARRAY_TYPES = {"alpha": np.float64, "labels": np.int8, "sv": np.int64, "rows": np.int64}
CLASS_NAMES = ("positive", "negative")
NUMBER_NAMES = tuple(
    field.name for field in fields(Machine) if field.name not in {*ARRAY_TYPES, *CLASS_NAMES, "C"}
)


@dataclass(frozen=True)
class Model:
    """Fitted machines and all that is needed to apply them.

    Parameters
    ----------
    kernel : Kernel
        With the number used for gamma.
    C : float
        Penalty the machines were trained with, before weights of rows and classes.
    classes : ndarray of float64 or str, shape (n_classes,)
        Label values in increasing order; of two, the larger one is +1.
    scaling : Scaling or None
        Scaling of the training rows; None when the training data said nothing about it.
    status : str
        How training ended, a value of `ooc_fw.solve.state.Status`; of several machines, the status
        of one that did not converge, if there is any.
    support_vectors : Rows
        As they stand in the training data, scaled; machines share them.
    machines : list of Machine
        One for each pair of classes, in the order of `ooc_fw.model.pairs.class_pairs`.
    """

    kernel: Kernel
    C: float
    classes: npt.NDArray[Any]
    scaling: Scaling | None
    status: str
    support_vectors: Rows
    machines: list[Machine]

    def __post_init__(self) -> None:
        n_classes, n_machines = len(self.classes), len(self.machines)
        if n_classes < 2 or n_machines != n_classes * (n_classes - 1) // 2:
            raise InputError(
                f"a model needs two classes or more, and a machine for each pair of them, not "
                f"{n_classes} classes and {n_machines} machines"
            )
        for machine in self.machines:
            if machine.sv.min() < 0 or machine.sv.max() >= len(self.support_vectors):
                raise InputError(f"sv points outside the {len(self.support_vectors)} vectors")

    @classmethod
    def from_solution(
        cls,
        solution: Solution,
        *,
        kernel: Kernel,
        C: float,
        classes: npt.ArrayLike,
        scaling: Scaling | None,
    ) -> Model:
        """Model of what `ooc_fw.solve.loop.solve` returned, for two classes."""
        return cls.from_pairs(
            [PairSolution(0, 1, solution)],
            solution.support_vectors,
            kernel=kernel,
            C=C,
            classes=classes,
            scaling=scaling,
        )

    @classmethod
    def from_pairs(
        cls,
        pairs: Sequence[PairSolution],
        support_vectors: Rows,
        *,
        kernel: Kernel,
        C: float,
        classes: npt.ArrayLike,
        scaling: Scaling | None,
    ) -> Model:
        """Model of machines for all pairs of classes.

        Parameters
        ----------
        pairs : sequence of PairSolution
            What `ooc_fw.training.one_versus_one.solve_classes` returned.
        support_vectors : Rows
            What `ooc_fw.training.one_versus_one.support_vectors_of` gives.
        kernel, C, classes, scaling
            See `Model`.
        """
        values = as_class_values(classes)
        rows = union_of_rows(pairs)
        order = np.argsort(rows)
        machines = [
            Machine(
                alpha=pair.solution.alpha,
                labels=pair.solution.labels,
                sv=order[np.searchsorted(rows, pair.solution.rows, sorter=order)],
                rows=pair.solution.rows,
                rho=pair.solution.rho,
                objective=pair.solution.objective,
                certified_gap=pair.solution.certified_gap,
                sampled_gap=pair.solution.sampled_gap,
                positive=values[pair.positive].item(),
                negative=values[pair.negative].item(),
                C=pair.solution.penalties,
            )
            for pair in pairs
        ]
        status = worst_status([pair.solution.status for pair in pairs])
        return cls(kernel, C, values, scaling, str(status), support_vectors, machines)

    @property
    def certified_gap(self) -> float | None:
        """Certified relative gap of the worst machine; None when one was not certified."""
        return worst_gap(machine.certified_gap for machine in self.machines)

    @property
    def sampled_gap(self) -> float | None:
        """Sampled relative gap of the worst machine, no certificate; None when one is unknown."""
        return worst_gap(machine.sampled_gap for machine in self.machines)

    @property
    def n_features(self) -> int:
        """Number of columns of the training data."""
        return int(self.support_vectors.shape[1])

    # -- probabilities -----------------------------------------------------------------------

    def with_sigmoids(self, sigmoids: Sequence[tuple[float, float]]) -> Model:
        """Same model, with a and b of the sigmoid of each machine."""
        machines = [
            replace(machine, sigmoid_a=a, sigmoid_b=b)
            for machine, (a, b) in zip(self.machines, sigmoids, strict=True)
        ]
        return replace(self, machines=machines)

    @property
    def calibrated(self) -> bool:
        """Whether the model can give probabilities."""
        return all(machine.sigmoid_a is not None for machine in self.machines)

    def probabilities(self, decision_values: Float64Array) -> Float64Array:
        """Probability of each class, given decision values.

        Parameters
        ----------
        decision_values : ndarray of float64
            What `decision_function` returns.

        Returns
        -------
        ndarray of float64, shape (n_rows, n_classes)
            In the order of `classes`; each row sums to 1.

        Raises
        ------
        InputError
            The model is not calibrated.
        """
        sigmoids = [
            (machine.sigmoid_a, machine.sigmoid_b)
            for machine in self.machines
            if machine.sigmoid_a is not None and machine.sigmoid_b is not None
        ]
        if len(sigmoids) < len(self.machines):
            raise InputError(
                "the model gives no probabilities; train it with --probability (in Python "
                "probability=True)"
            )
        return class_probabilities(decision_values, sigmoids, len(self.classes))

    # -- applying the model ------------------------------------------------------------------

    def decision_function(
        self,
        X: Any,
        *,
        threads: int = 1,
        dask: Any = None,
        on_rows: Callable[[int], None] | None = None,
        labels_only: bool = False,
    ) -> Float64Array:
        """Decision values of all rows of `X`, in the order in which `X` stores them.

        Each is within `DECISION_ACCURACY` of that of exact kernel values, as far as float64 allows:
        what float32 kernel values leave open is computed again in float64.

        Parameters
        ----------
        X : anything `ooc_fw.open_dataset` takes
            Read block by block; only the result grows with the number of rows.
        threads : int
            Threads for kernel values.
        dask : optional
            Where blocks are looked at: see `ooc_fw.data.parallel.borrow_workers`. None is here, one
            after the other. The values are the same to the last bit.
        on_rows : callable, optional
            Called after each block with the number of rows done.
        labels_only : bool
            The values serve for labels only (`class_places`): those are the same, and fewer rows
            are computed in float64.

        Returns
        -------
        ndarray of float64, shape (n_rows,), or (n_rows, n_machines) for more than two classes
            Divided by rho, so that the margin is at -1 and +1; positive means the larger class of
            a machine's two.

        Raises
        ------
        InputError
            When `X` has another number of features or was scaled in another way, or cannot be read
            by the processes that should.
        ChildProcessError
            A worker died and nobody could take its place.
        """
        with borrow_source(X) as source:
            values = self._empty(source.n_rows)
            for start, part in self.iter_decisions(
                source, threads=threads, dask=dask, labels_only=labels_only
            ):
                values[start : start + len(part)] = part
                if on_rows is not None:
                    on_rows(start + len(part))
        return values

    def iter_decisions(
        self,
        source: RowSource,
        *,
        threads: int = 1,
        dask: Any = None,
        labels_only: bool = False,
    ) -> Iterator[tuple[int, Float64Array]]:
        """Decision values block by block: memory does not grow with the number of rows.

        Parameters
        ----------
        source : RowSource
            Read once, from the first row to the last.
        threads, dask, labels_only
            As for `decision_function`, and so are the errors.

        Yields
        ------
        tuple of int and ndarray of float64
            Position of the block's first row, and the values of its rows.
        """
        with self.engine(threads) as engine:
            self.check_source(source)
            slices = block_slices(source, 0, source.n_rows)
            here = nullcontext(LocalWorkers(1))  # the engine has threads of its own
            with here if dask is None else borrow_workers(dask, threads) as workers:
                decision = self._decision(engine, labels_only)
                shared = Shared(decision, decision.recipe), shared_source(source, workers)
                with closing(workers.map(_decide_rows, slices, *shared)) as results:
                    for (start, stop), (part, n_bytes) in zip(slices, results, strict=True):
                        if workers.remote:
                            source.count(stop - start, n_bytes)
                        yield start, part
            source.check_unchanged()

    def predict(self, X: Any, *, threads: int = 1, dask: Any = None) -> npt.NDArray[Any]:
        """Class values of all rows of `X`; see `decision_function`."""
        values = self.decision_function(X, threads=threads, dask=dask, labels_only=True)
        return self.label_values(values)

    def decide(
        self, blocks: Iterable[Rows], *, threads: int = 1, labels_only: bool = False
    ) -> Iterator[Float64Array]:
        """Yield the decision values of each of a stream of blocks of rows, `n_features` wide."""
        with self.engine(threads) as engine:
            decision = self._decision(engine, labels_only)
            for block in blocks:
                yield decision(block)

    def _empty(self, n_rows: int) -> Float64Array:
        """Room for the decision values of some rows."""
        n_machines = len(self.machines)
        return np.empty(n_rows if n_machines == 1 else (n_rows, n_machines))

    def _decision(self, engine: Engine, labels_only: bool) -> _Decision:
        return _Decision(
            engine,
            self.support_vectors,
            [Weights(machine.sv, machine.alpha, machine.labels) for machine in self.machines],
            np.array([machine.rho for machine in self.machines]),
            len(self.classes),
            None if labels_only else DECISION_ACCURACY,
        )

    def engine(self, threads: int = 1) -> Engine:
        """Open an engine that suits the support vectors."""
        return Engine(self.kernel, threads, choose_arithmetic(self.kernel, self.support_vectors))

    def label_values(self, decision_values: Float64Array) -> npt.NDArray[Any]:
        """Class value for each row, of which `decision_values` are the decision values."""
        return np.asarray(self.classes[self.class_places(decision_values)])

    def class_places(self, decision_values: Float64Array) -> Int64Array:
        """Place in `classes` of what is predicted for each row."""
        if len(self.machines) == 1:
            return (decision_values > 0).astype(np.int64)
        return np.asarray(class_scores(decision_values, len(self.classes)).argmax(axis=1))

    def scale(self, blocks: Iterable[Rows]) -> Iterator[Rows]:
        """Raw rows of any width made like the training rows: scaled, cut or padded with zeros."""
        scaling = self.scaling or Scaling("none", False, None, None)
        # A scaling that moves zero makes sparse rows dense, hence short parts of each block.
        step = _rows_at_once(self.n_features)
        for block in blocks:
            for start in range(0, len(block), step):
                yield scaling.apply(block[start : start + step], self.n_features)

    # -- is this the right data? -------------------------------------------------------------

    def check_source(self, source: RowSource) -> None:
        """Raise InputError unless rows of `source` can be compared with the support vectors."""
        if source.n_features != self.n_features:
            raise InputError(
                f"{source.name} has {source.n_features} features but the model was trained on "
                f"{self.n_features}; convert it with --like and the training file"
            )
        if source.scaling is None:
            return
        if self.scaling is None:
            logger.warning(
                "%s is scaled (%s) while the model does not know how its training data were; "
                "taking the values as they are",
                source.name,
                source.scaling.kind,
            )
        elif not source.scaling.same_as(self.scaling):
            raise InputError(
                f"{source.name} is scaled ({source.scaling.kind}) in another way than the model's "
                f"training data ({self.scaling.kind}); convert it with --like and the training file"
            )

    def check_training_rows(self, source: RowSource, codes: Int64Array) -> None:
        """Raise InputError unless `source` is the data this model was trained on.

        Compares every support vector and its class, of which `codes` has the place for each row,
        with the row it is said to come from.
        """
        self.check_source(source)
        for machine in self.machines:
            expected = self.codes_of(machine)
            self._check_rows(machine, expected, source, codes)

    def codes_of(self, machine: Machine) -> Int64Array:
        """Place of the class of each support vector of a machine."""
        pair = np.searchsorted(self.classes, [machine.negative, machine.positive])
        return pair[(machine.labels > 0).astype(np.intp)]

    def _check_rows(
        self, machine: Machine, classes: Int64Array, source: RowSource, codes: Int64Array
    ) -> None:
        order = np.argsort(machine.rows)
        rows = machine.rows[order]
        if rows[0] < 0 or rows[-1] >= source.n_rows:
            raise InputError(
                f"{source.name} has {source.n_rows} rows but the model was trained on row "
                f"{rows[-1]}; give the file it was trained on"
            )
        step = _rows_at_once(self.n_features)
        for start in range(0, len(rows), step):
            part = order[start : start + step]
            found = _dense(source.take(rows[start : start + step]))
            expected = _dense(take_rows(self.support_vectors, machine.sv[part]))
            differs = (found != expected).any(axis=1)
            differs |= codes[machine.rows[part]] != classes[part]
            if differs.any():
                row = machine.rows[part[differs.argmax()]]
                raise InputError(
                    f"row {row} of {source.name} is not the model's support vector of that row; "
                    "give the file it was trained on"
                )

    # -- the file ----------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model file, replacing `path` atomically."""
        write_atomic(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """Content of the model file."""
        image = BytesIO()
        with h5py.File(image, "w") as file:
            self._write(file)
            file.attrs[CONTENT] = np.uint32(content_crc32(file))
        return image.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Model:
        """Model of what `to_bytes` gave; InputError or OSError when that is damaged."""
        with h5py.File(BytesIO(content), "r") as file:
            return _read_checked(file)

    def _write(self, file: h5py.File) -> None:
        file.attrs["format_version"] = FORMAT_VERSION
        put_text(file.attrs, "kernel", self.kernel.name)
        file.attrs["gamma"] = self.kernel.gamma
        file.attrs["degree"] = self.kernel.degree
        file.attrs["coef0"] = self.kernel.coef0
        file.attrs["C"] = float(self.C)
        put_text(file.attrs, "status", self.status)
        file.attrs["class_names"] = _storable(self.classes)
        if self.scaling is not None:
            self.scaling.write(file)
        _write_rows(file, "support_vectors", self.support_vectors)
        for k, machine in enumerate(self.machines):
            group = file.create_group(f"machines/{k}")
            for name, dtype in ARRAY_TYPES.items():
                group.create_dataset(name, data=np.asarray(getattr(machine, name), dtype=dtype))
            if machine.C is not None:
                group.create_dataset("C", data=machine.C)
            for name in NUMBER_NAMES:
                value = getattr(machine, name)
                if value is not None:
                    group.attrs[name] = float(value)
            for name in CLASS_NAMES:
                group.attrs[name] = _storable(np.asarray(getattr(machine, name)))[()]


class _Decision:
    """The decision function, ready to be applied: two stages, as in a certificate.

    What float32 kernel values leave open is computed again in float64: where `accuracy` is given,
    the values of rows whose bound exceeds it; else the rows whose label may be another one. Where
    that is most of a few support vectors, it is all rows at once. So the value of a row depends on
    the row and the model alone.

    Parameters
    ----------
    engine : Engine
        Computes kernel values.
    vectors : Rows, shape (n_support, n_features)
        Support vectors.
    classifiers : sequence of Weights
        The machines.
    rho : ndarray of float64, shape (n_machines,)
        Margins.
    n_classes : int
        Number of classes.
    accuracy : float or None
        How far a decision value may be off, on the scale where the margin is 1; None is for labels.

    Attributes
    ----------
    recipe : callable
        Makes another one, with an engine of its own that stays open, in another process.
    """

    def __init__(
        self,
        engine: Engine,
        vectors: Rows,
        classifiers: Sequence[Weights],
        rho: Float64Array,
        n_classes: int,
        accuracy: float | None,
    ) -> None:
        self._sparse = engine.arithmetic.sparse
        self._function = DecisionFunctions(engine, vectors, classifiers)
        self._rho = rho if len(rho) > 1 else rho[0]
        self._n_classes = n_classes
        self._accuracy = accuracy
        probe = take_rows(vectors, np.arange(0, len(vectors), -(-len(vectors) // _PROBE_VECTORS)))
        _, is_open = self._approximate(probe)
        self._skips = bool(np.count_nonzero(is_open) > len(is_open) / 2)
        own = vectors, classifiers, rho, n_classes, accuracy
        self.recipe = partial(_make_decision, engine.recipe(), *own)

    def __call__(self, block: Rows) -> Float64Array:
        """Decision values of some rows, shape (n_rows,) or (n_rows, n_machines)."""
        step = max(_LEAST_PART_ROWS, _PART_ROWS // np.size(self._rho))
        if not self._sparse or not isinstance(block, CSRRows):
            step = min(step, _rows_at_once(block.shape[1]))
        parts = []
        for start in range(0, max(1, len(block)), step):
            rows = block[start : start + step]
            if isinstance(rows, CSRRows) and not self._sparse:
                rows = rows.toarray()
            parts.append(self._decide(rows))
        return np.concatenate(parts)

    def _decide(self, rows: Rows) -> Float64Array:
        if self._skips:
            return self._exact(rows)
        values, is_open = self._approximate(rows)
        places = np.flatnonzero(is_open)
        if len(places) > 0:
            values[places] = self._exact(take_rows(rows, places))
        return values

    def _exact(self, rows: Rows) -> Float64Array:
        slices = range(0, max(1, len(rows)), _EXACT_ROWS)
        parts = [self._function.exact(rows[start : start + _EXACT_ROWS])[0] for start in slices]
        return np.asarray(np.concatenate(parts) / self._rho)

    def _approximate(self, rows: Rows) -> tuple[Float64Array, npt.NDArray[np.bool_]]:
        """Decision values from float32 kernel values, and which rows they leave open."""
        found = self._function.approximate(rows)
        values = found.values / self._rho
        bound = (found.bound + self._function.rounding) / self._rho
        if self._accuracy is not None:
            is_open = bound.reshape(len(rows), -1).max(axis=1) > self._accuracy
        elif values.ndim == 1:
            is_open = np.asarray(np.abs(values) <= bound)
        else:
            is_open = ~is_decided(values, bound, self._n_classes)
        return values, is_open


def _make_decision(engine: Callable[[], Engine], *own: Any) -> _Decision:
    return _Decision(engine(), *own)


def _decide_rows(
    decision: Shared[_Decision], source: Shared[RowSource], start: int, stop: int
) -> tuple[Float64Array, int]:
    """Decision values of a range of rows, and the bytes read for them."""
    rows = source.get().read(start, stop)
    source.get().check_unchanged()
    return decision.get()(rows), rows_bytes(rows)


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read a model file.

    Raises
    ------
    InputError
        When there is no such file, or it is no model, or is damaged.
    """
    name = os.fspath(path)
    if not os.path.exists(name):
        raise InputError(f"there is no model file {name}; write one with ooc-fw train")
    try:
        file = open_file(name)
    except DamageError as error:
        raise InputError(
            f"{name} is not a model file, or is damaged; write it again with ooc-fw train ({error})"
        ) from None
    try:
        with file:
            return _read_checked(file)
    except InputError as error:
        raise InputError(f"{name} is not a usable model file: {error}") from None
    except H5PY_ERRORS as error:
        # What h5py raises for files cut short, overwritten, or with a part missing.
        raise InputError(
            f"{name} is not a model file, or is damaged; write it again with ooc-fw train ({error})"
        ) from None


@contextmanager
def borrow_source(X: Any, labels: Any = None) -> Iterator[RowSource]:
    """Source of `X`, closed afterwards unless it is a source of the caller's."""
    source = open_source(X, labels)
    try:
        yield source
    finally:
        if source is not X:
            source.close()


def _check_is_model(file: h5py.File) -> None:
    if "kernel" not in file.attrs:
        kind = "holds data" if "X" in file else "holds something else"
        raise InputError(f"it {kind}; give the file that ooc-fw train wrote")
    version = int(file.attrs["format_version"])
    if version != FORMAT_VERSION:
        raise InputError(f"its format is {version}, and this ooc-fw reads {FORMAT_VERSION}")


def _read_checked(file: h5py.File) -> Model:
    _check_is_model(file)
    check_plain_tree(file)
    if CONTENT in file.attrs and content_crc32(file) != int(file.attrs[CONTENT]):
        raise DamageError("it does not match its checksum; restore a copy or train again")
    return _read(file)


def _read(file: h5py.File) -> Model:
    attributes = file.attrs
    return Model(
        kernel=make_kernel(
            get_text(attributes, "kernel"),
            gamma=float(attributes["gamma"]),
            degree=int(attributes["degree"]),
            coef0=float(attributes["coef0"]),
        ),
        C=float(attributes["C"]),
        classes=_class_values(attributes["class_names"]),
        scaling=Scaling.read(file) if "scaling" in attributes else None,
        status=get_text(attributes, "status"),
        support_vectors=_read_rows(file["support_vectors"]),
        machines=[_read_machine(file[f"machines/{k}"]) for k in range(len(file["machines"]))],
    )


def _read_machine(group: h5py.Group) -> Machine:
    arrays = {name: _vector(group[name], dtype) for name, dtype in ARRAY_TYPES.items()}
    optional = ("certified_gap", "sampled_gap", "sigmoid_a", "sigmoid_b")
    numbers = {
        name: None if name in optional and name not in group.attrs else float(group.attrs[name])
        for name in NUMBER_NAMES
    }
    names = {name: _class_values(group.attrs[name]).item() for name in CLASS_NAMES}
    C = _vector(group["C"], np.float64) if "C" in group else None
    return Machine(**arrays, **numbers, **names, C=C)  # type: ignore[arg-type]


def _vector(stored: h5py.Dataset, dtype: type) -> npt.NDArray[Any]:
    """Vector of `dtype`; InputError where real numbers stand in place of whole ones."""
    kinds = "f" if dtype is np.float64 else "iu"
    if stored.ndim != 1 or stored.dtype.kind not in kinds:
        raise InputError(f"{stored.name} is {stored.ndim}-dimensional, of type {stored.dtype}")
    return np.asarray(stored[...].astype(dtype))


def as_class_values(classes: npt.ArrayLike) -> npt.NDArray[Any]:
    """Class values as a model holds them: numbers as float64, anything else as text."""
    values = np.asarray(classes)
    return values.astype(np.float64) if values.dtype.kind in "biuf" else values.astype(str)


def _storable(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Class values in the form that HDF5 attributes take: text as UTF-8 bytes."""
    return np.char.encode(values, "utf-8") if values.dtype.kind == "U" else values


def _class_values(stored: Any) -> npt.NDArray[Any]:
    values = np.asarray(stored)
    if values.dtype.kind == "S":
        return np.asarray(np.char.decode(values, "utf-8"))
    return values.astype(np.float64)


def _write_rows(file: h5py.File, name: str, rows: Rows) -> None:
    if not isinstance(rows, CSRRows):
        file.create_dataset(name, data=rows)
        return
    group = file.create_group(name)
    group.attrs["encoding-type"] = "csr_matrix"
    group.attrs["encoding-version"] = "0.1.0"
    group.attrs["shape"] = rows.shape
    for part in ("data", "indices", "indptr"):
        group.create_dataset(part, data=getattr(rows, part))


def _read_rows(stored: h5py.Dataset | h5py.Group) -> Rows:
    if isinstance(stored, h5py.Dataset):
        dense: npt.NDArray[np.float32] = np.ascontiguousarray(stored[...], dtype=np.float32)
        if dense.ndim != 2:
            raise InputError(f"support_vectors has {dense.ndim} dimensions instead of 2")
        return dense
    n_rows, n_features = (int(size) for size in stored.attrs["shape"])
    for part, kinds in (("data", "f"), ("indices", "iu"), ("indptr", "iu")):
        if stored[part].ndim != 1 or stored[part].dtype.kind not in kinds:
            raise InputError("support_vectors is no valid CSR group")
    rows = CSRRows(
        stored["data"][...].astype(np.float32),
        stored["indices"][...].astype(np.int32),
        stored["indptr"][...].astype(np.int64),
        n_features,
    )
    _check_csr(rows, n_rows)
    return rows


def _check_csr(rows: CSRRows, n_rows: int) -> None:
    """Compiled code trusts these arrays, so a damaged file must be found here."""
    n_stored = len(rows.data)
    pointers, columns = rows.indptr, rows.indices
    if (
        len(rows) != n_rows
        or pointers[0] != 0
        or pointers[-1] != n_stored
        or len(columns) != n_stored
        or (np.diff(pointers) < 0).any()
        or (n_stored > 0 and not 0 <= columns.min() <= columns.max() < rows.n_features)
        or canonical_csr(rows.data, columns, pointers, rows.n_features, "it").indices is not columns
    ):
        raise InputError("support_vectors is no valid CSR group")


def _dense(rows: Rows) -> npt.NDArray[np.float32]:
    return rows.toarray() if isinstance(rows, CSRRows) else rows


def _rows_at_once(n_features: int) -> int:
    """Rows that take about `PART_BYTES` when dense."""
    return max(1, PART_BYTES // (4 * n_features))
