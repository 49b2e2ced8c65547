"""The model file: an HDF5 file of a few megabytes, read without running any code; its checks.

``ooc-fw help files`` describes its layout. The attribute ``content_crc32`` covers all of it and is
compared on loading; a file without it is read nevertheless. Files of ooc-fw 0.2, in formats 1 to 4,
are read, too: ``/machines/k`` is classifier k, with rows and penalties of its own, and format 3
has arrays of all classifiers. Formats 1 and 3 are exact, 2 is of landmarks, and 4 may be either.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from operator import index
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.data.containers import check_plain_tree, open_file, open_rows
from ooc_fw.data.converted import CONTENT, content_crc32
from ooc_fw.data.formats import COLUMNS, get_text, get_texts, put_text, put_texts
from ooc_fw.data.rows import CSRRows, check_pointers
from ooc_fw.data.scaling import Scaling
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.model.machines import (
    ARRAYS,
    NUMBERS,
    Machines,
    class_sides,
    count_classifiers,
    decision_of,
    demand,
)
from ooc_fw.problem import WEIGHT_SUM_TOLERANCE
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import DamageError, InputError, unreadable

if TYPE_CHECKING:
    from ooc_fw.model.record import Model

FORMAT = 5  # of the files that are written; those of older ones are read, too

_VECTORS = {"rows": np.int64, "penalties": np.float64, "weighted_rows": np.uint8}
_OF_TASKS = {
    "classification": (),
    "novelty": ("offset",),
    "regression": ("offset", "spread", "epsilon"),
}


def content_of(model: Model) -> bytes:
    """Content of the file of a model."""
    content = BytesIO()
    with h5py.File(content, "w") as file:
        _write(file, model)
        file.attrs[CONTENT] = np.uint32(content_crc32(file))
    return content.getvalue()


def _write(file: h5py.File, model: Model) -> None:
    file.attrs["format_version"] = FORMAT
    put_text(file.attrs, "task", model.task)
    put_text(file.attrs, "status", model.status)
    put_text(file.attrs, "kernel", model.kernel.name)
    for name in ("gamma", "degree", "coef0"):
        file.attrs[name] = getattr(model.kernel, name)
    for name in ("C", "jitter", *_OF_TASKS[model.task]):
        if getattr(model, name) is not None:
            file.attrs[name] = float(getattr(model, name))
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
    for name in _VECTORS:
        if getattr(model, name) is not None:
            file[name] = getattr(model, name)
    if model.columns:
        put_texts(file, COLUMNS, model.columns)
    for name in ("table", "run"):
        if getattr(model, name) is not None:
            file[name] = np.frombuffer(getattr(model, name).encode("utf-8"), dtype=np.uint8)
    if model.classes.dtype.kind == "f":
        file["classes"] = model.classes
    else:
        put_texts(file, "classes", model.classes.tolist())
    group = file.create_group("machines")
    for name in (*ARRAYS, *NUMBERS):
        group[name] = getattr(model.machines, name)
    group["negative"], group["positive"] = model.sides.T


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[h5py.File]:
    """A model file; its defects become an InputError that names the file."""
    name = os.fspath(path)
    if not os.path.exists(name):
        raise InputError(f"there is no model file {name}; write one with ooc-fw train")
    try:
        with open_file(name) as file:
            yield file
    except Exception as error:
        if isinstance(error, InputError) and not isinstance(error, DamageError):
            raise InputError(f"{name} is not a usable model file: {error}") from None
        # What h5py raises for files that were cut short, overwritten, or lack a part.
        raise unreadable(name, error) or InputError(
            f"{name} is not a model file, or is damaged; write it again with ooc-fw train ({error})"
        ) from None


def read_fields(file: h5py.File) -> dict[str, Any]:
    """Fields of the `Model` in an open file; InputError or an error of h5py for a damaged one."""
    attributes = file.attrs
    if "kernel" not in attributes:
        kind = "holds data" if "X" in file else "holds something else"
        raise InputError(f"it {kind}; give the file that ooc-fw train wrote")
    version = index(attributes["format_version"])
    demand(1 <= version <= FORMAT, f"its format is {version}; this ooc-fw reads 1 to {FORMAT}")
    check_plain_tree(file)
    if CONTENT in attributes and content_crc32(file) != int(attributes[CONTENT]):
        raise DamageError("it does not match its checksum; restore a copy or train again")
    task = get_text(attributes, "task") if "task" in attributes else "classification"
    names = tuple(name for name in _OF_TASKS["regression"] if name in attributes)
    known = _OF_TASKS.get(task)
    demand(names == known, f"it has {names}, which are not the numbers of a model of {task}")
    scaling = Scaling.read(file)
    demand(scaling or "scaling" not in file, "it lacks the kind of its scaling")
    with open_rows(file["support_vectors"]) as source:
        vectors = source.read(0, source.n_rows)
    fields: dict[str, Any] = {
        "kernel": make_kernel(
            get_text(attributes, "kernel"),
            gamma=_number_of(attributes, "gamma"),
            degree=index(attributes["degree"]),
            coef0=_number_of(attributes, "coef0"),
        ),
        "scaling": scaling,
        "status": str(Status(get_text(attributes, "status"))),
        "support_vectors": vectors,
    }
    for name in ("C", *names, *(["jitter"] if "jitter" in attributes else [])):
        fields[name] = _number_of(attributes, name)
    for name, dtype in _VECTORS.items():
        if name in file:
            fields[name] = _vector_of(file[name], dtype)
    if COLUMNS in file:
        fields["columns"] = tuple(get_texts(file, COLUMNS) or ())
    for name in ("table", "run"):
        if name in file:
            fields[name] = _vector_of(file[name], np.uint8).tobytes().decode("utf-8")
    if version < FORMAT:
        return fields | _read_trained(file, fields)
    if file["classes"].dtype.kind == "S":
        classes = np.array(get_texts(file, "classes"))
    else:
        classes = _vector_of(file["classes"], np.float64)
    group = file["machines"]
    sides = [_vector_of(group[name], np.int64) for name in ("negative", "positive")]
    decision = decision_of(len(classes), landmarks="jitter" in fields)
    demand(
        len(sides[0]) == count_classifiers(len(classes), decision)
        and np.array_equal(np.column_stack(sides), class_sides(len(classes), decision)),
        "its classifiers are not those of its classes",
    )
    kinds = ARRAYS | dict.fromkeys(NUMBERS, np.float64)
    machines = {name: _vector_of(group[name], kind) for name, kind in kinds.items()}
    return fields | {"classes": classes, "machines": Machines(**machines)}


def _number_of(attributes: Any, name: str) -> float:
    value = np.asarray(attributes[name])
    demand(value.ndim == 0 and value.dtype.kind in "iuf", f"its {name} is not a number")
    return float(value)


def _vector_of(stored: h5py.Dataset, dtype: type) -> npt.NDArray[Any]:
    """One-dimensional array of `dtype`; InputError for numbers that it does not hold."""
    kinds = "iu" if issubclass(dtype, np.integer) else "f"
    if stored.ndim != 1 or stored.dtype.kind not in kinds:
        raise InputError(f"{stored.name} is {stored.ndim}-dimensional, of type {stored.dtype}")
    values = stored[...]
    converted: npt.NDArray[Any] = np.ascontiguousarray(values, dtype=dtype)
    if kinds == "iu" and (converted != values).any():
        raise InputError(f"{stored.name} has a number that {np.dtype(dtype)} does not hold")
    return converted


def _read_trained(file: h5py.File, fields: dict[str, Any]) -> dict[str, Any]:
    """Classes, classifiers and what they share, of a file of 0.2."""
    group = file["machines"]
    flat = "indptr" in group
    each = [group] if flat else [group[str(k)] for k in range(len(group))]
    spans = "landmarks" in each[0]

    def arrays(name: str) -> list[npt.NDArray[Any]]:
        """Arrays of each classifier."""
        found = [_as_stored(own[name]) for own in each]
        return np.split(found[0], _as_stored(group["indptr"])[1:-1]) if flat else found

    numbers: dict[str, Any] = {}
    for name in NUMBERS:
        if not flat:
            numbers[name] = [own.attrs.get(name, np.nan) for own in each]
        elif name in group:
            numbers[name] = _as_stored(group[name])
    if spans:
        numbers["rho"] = np.ones(len(each))
        places = arrays("landmarks")
        betas = arrays("beta")
    else:
        places = arrays("sv")
        betas = [a * y for a, y in zip(arrays("alpha"), arrays("labels"), strict=True)]
    vectors = np.concatenate(places)
    rows = np.full(len(fields["support_vectors"]), -1)
    rows[vectors] = np.concatenate(arrays("rows"))
    penalties = None
    if "C" in each[0]:
        penalties = np.full(len(rows), fields["C"])
        penalties[vectors] = np.concatenate(arrays("C"))
    names = np.asarray(file.attrs["class_names"])
    return {
        "classes": np.char.decode(names) if names.dtype.kind == "S" else names.astype(np.float64),
        "machines": Machines.of(places, betas, **numbers),
        "rows": rows,
        "penalties": penalties,
        "jitter": _number_of(each[0].attrs, "jitter") if spans else None,
    }


def _as_stored(stored: h5py.Dataset) -> npt.NDArray[Any]:
    return _vector_of(stored, np.float64 if stored.dtype.kind == "f" else np.int64)


def check_model(model: Model) -> None:
    """Raise InputError for what no training gives, or what does not fit together."""
    classes = model.classes.tolist()
    exact = model.kind == "exact"
    demand(
        len(classes) > 1 and len(model.machines) == count_classifiers(len(classes), model.decision),
        f"no model has {len(classes)} classes and {len(model.machines)} classifiers",
    )
    different = len(set(classes)) == len(classes)
    finite = model.classes.dtype.kind != "f" or np.isfinite(model.classes).all()
    demand(different and finite, "classes must be words or finite numbers, all different")
    of_task = model.task == "classification" or classes == [-1, 1]
    if model.task == "regression":
        of_task &= not exact and None not in (model.offset, model.epsilon)
    demand(of_task, f"its classes, classifiers or numbers are not those of {model.task}")
    for name in ("C", "jitter", "offset", "spread", "epsilon"):
        value = 1.0 if getattr(model, name) is None else getattr(model, name)
        possible = value > 0 if name in ("C", "spread") else value >= 0 or name == "offset"
        demand(possible and np.isfinite(value), f"the {name} of a model cannot be {value}")
    _check_machines(model.machines, len(model.support_vectors), exact)
    one_sided = model.task != "novelty" or not exact or (model.machines.beta >= 0).all()
    demand(one_sided, "weights of novelty must not be negative")
    _check_vectors(model, exact)


def _check_vectors(model: Model, exact: bool) -> None:
    """Raise InputError for rows, penalties and widths that are not those of support vectors."""
    n = len(model.support_vectors)
    rows = model.rows
    fits = len(rows) == n and rows.min() >= (0 if exact else -1)
    demand(fits, f"{n} support vectors need as many numbers of rows")
    rows = rows[rows != -1]
    demand(len(np.unique(rows)) == len(rows), "two support vectors are the same row")
    penalties = np.ones(n) if model.penalties is None else model.penalties
    fits = len(penalties) == n and ((penalties > 0) & (penalties < np.inf)).all()
    demand(fits, f"C must be {n} positive numbers")
    widths = {model.n_features, len(model.columns or range(model.n_features))}
    if model.scaling is not None and model.scaling.n_features is not None:
        widths.add(model.scaling.n_features)
    demand(len(widths) == 1, f"it describes {widths} columns")


def _check_machines(machines: Machines, n_vectors: int, exact: bool) -> None:
    """Raise InputError for arrays and numbers of classifiers that no training gives."""
    n = len(machines)
    sv = machines.sv
    beta = machines.beta
    check_pointers(machines.indptr, len(sv), "indptr of the classifiers")
    lengths = np.diff(machines.indptr)
    numbers = np.array([getattr(machines, name) for name in NUMBERS])
    fits = len(beta) == len(sv) and numbers.shape[1:] == (n,) and lengths.all()
    demand(fits, "the arrays of classifiers must be of one length above 0")
    fits = 0 <= sv.min() <= sv.max() < n_vectors
    demand(fits, f"a classifier points outside the {n_vectors} vectors")
    places = np.repeat(np.arange(n), lengths) * n_vectors + sv
    demand(len(np.unique(places)) == len(sv), "a classifier has a support vector twice")
    demand(np.isfinite(beta).all(), "weights must be finite numbers")
    positive = (machines.rho >= np.finfo(np.float64).tiny) & (machines.rho < np.inf)
    demand(positive.all(), "rho must be a positive number")
    if exact:
        sums = np.add.reduceat(np.abs(beta), machines.indptr[:-1])
        near = np.abs(sums - 1) <= WEIGHT_SUM_TOLERANCE
        demand(near.all(), f"absolute weights must have the sum 1, not {sums}")
    else:
        same = np.array_equal(sv, np.tile(sv[: lengths[0]], n))
        demand(same, "all classifiers of a landmark model must have the same landmarks")
        demand((machines.rho == 1).all(), "rho of landmarks must be 1")
    for name in ("certified_gap", "primal", "dual"):
        values = getattr(machines, name)
        possible = (values >= 0) & (np.isfinite(values) | (name == "certified_gap"))
        demand((possible | np.isnan(values)).all(), f"{name} must not be {values}")
    sigmoids = np.array([machines.sigmoid_a, machines.sigmoid_b])
    possible = np.isfinite(sigmoids).all(axis=0) | np.isnan(sigmoids).all(axis=0)
    demand(possible.all(), f"sigmoids cannot have the numbers {sigmoids}")
