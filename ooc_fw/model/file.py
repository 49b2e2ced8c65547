"""The model file and its checks: an HDF5 file of a few megabytes; reading it runs no code.

``ooc-fw help files`` describes the layout. The attribute ``content_crc32`` is a checksum of the
whole content and is compared on loading; files without it are accepted.
"""

from __future__ import annotations

import json
import os
from io import BytesIO
from itertools import pairwise
from operator import index
from typing import Any, TypeVar

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.data.containers import open_file, open_rows
from ooc_fw.data.converted import CONTENT, content_crc32
from ooc_fw.data.formats import COLUMNS, as_bytes, as_text, get_texts
from ooc_fw.data.labels import Classes
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, check_pointers
from ooc_fw.data.scaling import Scaling
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.model.machines import NUMBERS, Classifier
from ooc_fw.model.trained import Trained
from ooc_fw.problem import WEIGHT_SUM_TOLERANCE
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import DamageError, InputError, unreadable

Record = TypeVar("Record", bound=Trained)

FORMAT = 5  # older formats are refused

# Fields of a model by the way they are stored: as attributes, as texts (in bytes), as arrays.
_ATTRIBUTES = ("C", "jitter", "offset", "spread", "epsilon", "threshold")
_TEXTS = ("table", "origin", "run")
_VECTORS: dict[str, Any] = {"rows": np.int64, "weighted_rows": np.uint8}
_VECTORS |= dict.fromkeys(("penalties", "class_penalties", "penalty_sums"), np.float64)
_ENTRIES = {"indptr": np.int64, "sv": np.int64, "beta": np.float64}  # arrays of all classifiers


def content_of(model: Trained) -> bytes:
    """The bytes of the file of a model."""
    content = BytesIO()
    with h5py.File(content, "w") as file:
        file.attrs["format_version"] = FORMAT
        file.attrs["task"] = as_bytes(model.task)
        file.attrs["status"] = as_bytes(model.status)
        file.attrs["kernel"] = as_bytes(model.kernel.name)
        for name in ("gamma", "degree", "coef0"):
            file.attrs[name] = getattr(model.kernel, name)
        if model.n_rows is not None:
            file.attrs["n_rows"] = model.n_rows
        for name in (*_ATTRIBUTES, *_TEXTS, *_VECTORS):
            value = getattr(model, name)
            if name == "origin":
                value = json.dumps(dict(value)) if value else None
            if value is not None and name in _ATTRIBUTES:
                file.attrs[name] = float(value)
            elif value is not None:
                is_text = name in _TEXTS
                file[name] = np.frombuffer(value.encode(), np.uint8) if is_text else value
        if model.scaling is not None:
            model.scaling.write(file)
        vectors = model.support_vectors
        if isinstance(vectors, CSRRows):
            group = file.create_group("support_vectors")
            group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0"})
            group.attrs["shape"] = vectors.shape
            for part in ("data", "indices", "indptr"):
                group[part] = getattr(vectors, part)
        else:
            file["support_vectors"] = vectors
        if model.columns:
            file[COLUMNS] = as_bytes(model.columns)
        are_words = Classes(model.classes).are_words
        file["classes"] = as_bytes(model.classes.tolist()) if are_words else model.classes
        group = file.create_group("machines")
        classifier, sv, beta = model.entries()
        group["sv"] = sv
        group["beta"] = beta
        group["indptr"] = np.searchsorted(classifier, np.arange(len(model.classifiers) + 1))
        for name in NUMBERS:
            group[name] = model.numbers(name)
        group["negative"], group["positive"] = model.sides.T
        file.attrs[CONTENT] = np.uint32(content_crc32(file))
    return content.getvalue()


def read_model(path: str | os.PathLike[str], record: type[Record]) -> Record:
    """Read a model file into a `record`. Defects raise an InputError that names the file."""
    name = os.fspath(path)
    if not os.path.exists(name):
        raise InputError(f"there is no model file {name}; write one with ooc-fw train")
    try:
        with open_file(name) as file:
            model = record(**_read_fields(file))
            task = as_text(file.attrs["task"])
            demand(task == model.task, f"its numbers do not fit a model of {task}")
            group = file["machines"]
            sides = [_vector_of(group[name], np.int64) for name in ("negative", "positive")]
            fits = np.array_equal(sides, model.sides.T)
            demand(fits, "its classifiers do not fit its classes")
            return model
    except Exception as error:
        if isinstance(error, InputError) and not isinstance(error, DamageError):
            raise InputError(f"{name} is not a usable model file: {error}") from None
        # h5py raises these errors for files that were cut short, overwritten, or lack a part.
        raise unreadable(name, error) or InputError(
            f"{name} is not a model file, or is damaged; write it again with ooc-fw train ({error})"
        ) from None


def _read_fields(file: h5py.File) -> dict[str, Any]:
    """Read the fields of a `Model`; damage raises an InputError or an error of h5py."""
    attributes = file.attrs
    if "kernel" not in attributes:
        kind = "holds data" if "X" in file else "holds something else"
        raise InputError(f"it {kind}; give the file that ooc-fw train wrote")
    version = index(attributes["format_version"])
    words = f"its format is {version} and this ooc-fw reads {FORMAT}"
    demand(version <= FORMAT, f"{words}; update ooc-fw")
    demand(version == FORMAT, f"{words}; train it again")
    content = content_crc32(file)
    if content != int(attributes.get(CONTENT, content)):
        raise DamageError("it does not match its checksum; restore a copy or train again")
    scaling = Scaling.read(file)
    demand(scaling or "scaling" not in file, "it lacks the kind of its scaling")
    with open_rows(file["support_vectors"]) as source:
        vectors = source.read(0, source.n_rows)
    kernel = make_kernel(
        as_text(attributes["kernel"]),
        gamma=_number_of(attributes, "gamma"),
        degree=index(attributes["degree"]),
        coef0=_number_of(attributes, "coef0"),
    )
    status = str(Status(as_text(attributes["status"])))
    fields: dict[str, Any] = {"kernel": kernel, "scaling": scaling, "status": status}
    fields["support_vectors"] = vectors
    for name in _ATTRIBUTES:
        if name in attributes:
            fields[name] = _number_of(attributes, name)
    if "n_rows" in attributes:
        fields["n_rows"] = index(attributes["n_rows"])
    for name in _TEXTS:
        if name in file:
            fields[name] = _vector_of(file[name], np.uint8).tobytes().decode("utf-8")
    fields["origin"] = json.loads(fields.get("origin", "{}"))
    for name, dtype in _VECTORS.items():
        if name in file:
            fields[name] = _vector_of(file[name], dtype)
    if COLUMNS in file:
        fields["columns"] = tuple(get_texts(file, COLUMNS) or ())
    classes = file["classes"]
    if classes.dtype.kind == "S":
        fields["classes"] = np.array(get_texts(file, "classes"))
    else:
        demand(classes.ndim == 1 and classes.dtype.kind in "biuf", "its classes are no labels")
        fields["classes"] = classes[...]
    kinds = _ENTRIES | dict.fromkeys(NUMBERS, np.float64)
    arrays = {name: _vector_of(file["machines"][name], kind) for name, kind in kinds.items()}
    return fields | {"classifiers": _classifiers_of(**arrays)}


def _classifiers_of(
    indptr: Int64Array, sv: Int64Array, beta: Float64Array, **numbers: Float64Array
) -> list[Classifier]:
    """Make classifiers: number k has the entries ``indptr[k]:indptr[k + 1]``; NaN becomes None."""
    check_pointers(indptr, len(sv), "indptr of the classifiers")
    fits = len(beta) == len(sv) and {len(indptr) - 1} == {len(own) for own in numbers.values()}
    demand(fits, "the arrays of classifiers must be of one length")
    own: Any = np.column_stack([numbers[name] for name in NUMBERS])
    own = np.where(np.isnan(own), None, own)
    return [
        Classifier(sv[start:stop], beta[start:stop], *own[k])
        for k, (start, stop) in enumerate(pairwise(indptr.tolist()))
    ]


def _number_of(attributes: Any, name: str) -> float:
    value = np.asarray(attributes[name])
    demand(value.ndim == 0 and value.dtype.kind in "iuf", f"its {name} is not a number")
    return float(value)


def _vector_of(stored: h5py.Dataset, dtype: type) -> npt.NDArray[Any]:
    """Read a one-dimensional array of numbers that `dtype` holds; else InputError."""
    kinds = "iu" if issubclass(dtype, np.integer) else "f"
    fits = stored.ndim == 1 and stored.dtype.kind in kinds
    demand(fits, f"{stored.name} is {stored.ndim}-dimensional, of type {stored.dtype}")
    values = stored[...]
    converted: npt.NDArray[Any] = np.ascontiguousarray(values, dtype=dtype)
    fits = kinds == "f" or np.array_equal(converted, values)
    demand(fits, f"{stored.name} has a number that {np.dtype(dtype)} does not hold")
    return converted


def demand(holds: Any, message: str) -> None:
    """Raise InputError unless a condition holds."""
    if not holds:
        raise InputError(message)


def check_model(model: Trained) -> None:
    """Raise InputError if fields contradict each other, or if no training gives their values."""
    classes = model.classes.tolist()
    n = len(classes)
    expected = n if model.decision == "ovr" else n * (n - 1) // 2
    fits: Any = n > 1 and len(model.classifiers) == expected
    demand(fits, f"no model has {n} classes and {len(model.classifiers)} classifiers")
    finite = model.classes.dtype.kind != "f" or np.isfinite(model.classes).all()
    fits = finite and len(set(classes)) == n
    demand(fits, "classes must be words or finite numbers, all different")
    of_task = model.task == "classification" or classes == [-1, 1]
    if model.task == "regression":
        of_task &= model.kind != "exact" and None not in (model.offset, model.epsilon)
    of_task &= model.threshold is None or (n == 2 and model.task != "regression")
    demand(of_task, f"its classes, classifiers or numbers do not fit {model.task}")
    for name in _ATTRIBUTES:
        value = 1.0 if getattr(model, name) is None else getattr(model, name)
        possible = value > 0 if name in ("C", "spread") else value >= 0
        possible |= name in ("offset", "threshold")
        demand(possible and np.isfinite(value), f"the {name} of a model cannot be {value}")
    n_vectors = len(model.support_vectors)
    rows = model.rows[model.rows != -1]
    unknown = 0 if model.kind == "exact" else len(model.rows) - len(rows)
    fits = len(rows) + unknown == n_vectors and rows.min(initial=0) >= 0
    demand(fits, f"{n_vectors} support vectors need as many numbers of rows")
    demand(len(np.unique(rows)) == len(rows), "two support vectors are the same row")
    if model.n_rows is not None:
        bits = model.weighted_rows
        fits = bits is None or len(bits) == -(-model.n_rows // 8)
        demand(fits and rows.max(initial=-1) < model.n_rows, f"its rows are not {model.n_rows}")
    if model.penalty_sums is not None:
        own: Any = model.class_penalties
        fits = len(own) == len(model.penalty_sums) == (n if model.task == "classification" else 1)
        demand(fits and (own > 0).all(), f"C of the rows of classes cannot be {own}")
    penalties = np.ones(n_vectors) if model.penalties is None else model.penalties
    fits = len(penalties) == n_vectors and ((penalties > 0) & (penalties < np.inf)).all()
    demand(fits, f"C must be {n_vectors} positive numbers")
    widths = {model.n_features, len(model.columns or range(model.n_features))}
    if model.scaling is not None and model.scaling.n_features is not None:
        widths.add(model.scaling.n_features)
    demand(len(widths) == 1, f"it describes {widths} columns")
    _check_classifiers(model)


def _check_classifiers(model: Trained) -> None:
    """Raise InputError if the arrays or numbers of classifiers are impossible."""
    n_vectors = len(model.support_vectors)
    fits = all(len(one.beta) == len(one.sv) > 0 for one in model.classifiers)
    demand(fits, "vectors and weights of a classifier must be of one length above 0")
    classifier, sv, beta = model.entries()
    fits = 0 <= sv.min() <= sv.max() < n_vectors
    demand(fits, f"a classifier points outside the {n_vectors} vectors")
    places = classifier * n_vectors + sv
    demand(len(np.unique(places)) == len(sv), "a classifier has the same support vector twice")
    demand(np.isfinite(beta).all(), "weights must be finite numbers")
    rho = model.numbers("rho")
    positive = (rho >= np.finfo(np.float64).tiny) & (rho < np.inf)
    demand(positive.all(), "rho must be a positive number")
    if model.kind == "exact":
        sums = np.bincount(classifier, np.abs(beta))
        near = np.abs(sums - 1) <= WEIGHT_SUM_TOLERANCE
        demand(near.all(), f"absolute weights must sum to 1, not {sums}")
        one_sided = model.task != "novelty" or (beta >= 0).all()
        demand(one_sided, "weights of novelty must not be negative")
    else:
        same = np.array_equal(sv, np.tile(model.classifiers[0].sv, len(rho)))
        demand(same, "all classifiers of a landmark model must have the same landmarks")
        demand((rho == 1).all(), "rho of landmarks must be 1")
    for name in ("certified_gap", "primal", "dual"):
        values = model.numbers(name)
        possible = (values >= 0) & (np.isfinite(values) | (name == "certified_gap"))
        demand((possible | np.isnan(values)).all(), f"{name} must not be {values}")
    sigmoids = np.array([model.numbers("sigmoid_a"), model.numbers("sigmoid_b")])
    possible = np.isfinite(sigmoids).all(axis=0) | np.isnan(sigmoids).all(axis=0)
    demand(possible.all(), f"sigmoids cannot have the numbers {sigmoids}")
