"""The model file: an HDF5 file of a few megabytes, read without running any code.

``ooc-fw help files`` describes its layout. The attribute ``content_crc32`` covers all of it and is
compared on loading; a file without it is read nevertheless.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from io import BytesIO
from operator import index
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.data.containers import open_rows
from ooc_fw.data.converted import CONTENT, LABELS_AS, LIBRARY_VERSIONS, content_crc32
from ooc_fw.data.formats import COLUMNS, RECORD, get_text, get_texts, put_text, put_texts
from ooc_fw.data.hdf5 import H5PY_ERRORS, as_node, check_plain_tree, open_file
from ooc_fw.data.rows import CSRRows, check_pointers
from ooc_fw.data.scaling import Scaling
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.model.pairs import BinaryClassifier, Classifier, LandmarkClassifier, decision_of
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import DamageError, InputError, unreadable

if TYPE_CHECKING:
    from ooc_fw.model.record import Model

# Formats of exact models, landmark models, exact models with many classifiers, and other tasks.
_FORMAT, _LANDMARKS, _TABLE, _OTHER_TASKS = 1, 2, 3, 4

_WEIGHTED = "weighted_rows"
_OF_TASKS = {
    "classification": (),
    "novelty": ("offset",),
    "regression": ("offset", "spread", "epsilon"),
}
_LARGE_ATTRIBUTE = 60_000  # bytes from which an attribute needs a younger form of HDF5
_FEW = 10  # classifiers up to which each has a group of its own, which is easy to look at

# Fields of classifiers; all others are numbers.
_ARRAYS: dict[str, type] = {
    **dict.fromkeys(("alpha", "beta", "C"), np.float64),
    **dict.fromkeys(("sv", "landmarks", "rows"), np.int64),
    "labels": np.int8,
}
_CLASSES = ("positive", "negative")


def content_of(model: Model) -> bytes:
    """Content of the file of a model."""
    content = BytesIO()
    versions = None if _storable(model.classes).nbytes < _LARGE_ATTRIBUTE else LIBRARY_VERSIONS
    with h5py.File(content, "w", libver=versions) as file:
        _write(file, model)
        file.attrs[CONTENT] = np.uint32(content_crc32(file))
    return content.getvalue()


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[h5py.File]:
    """A model file; its defects become an InputError that names the file."""
    name = os.fspath(path)
    if not os.path.exists(name):
        raise InputError(f"there is no model file {name}; write one with ooc-fw train")
    try:
        with open_file(name) as file:
            yield file
    except (InputError, *H5PY_ERRORS) as error:
        if isinstance(error, InputError) and not isinstance(error, DamageError):
            raise InputError(f"{name} is not a usable model file: {error}") from None
        # What h5py raises for files that were cut short, overwritten, or lack a part.
        raise unreadable(name, error) or InputError(
            f"{name} is not a model file, or is damaged; write it again with ooc-fw train ({error})"
        ) from None


def read_fields(file: h5py.File) -> dict[str, Any]:
    """Fields of the `Model` in a file; compares the checksum."""
    attributes = file.attrs
    if "kernel" not in attributes:
        kind = "holds data" if "X" in file else "holds something else"
        raise InputError(f"it {kind}; give the file that ooc-fw train wrote")
    version = index(attributes["format_version"])
    if not _FORMAT <= version <= _OTHER_TASKS:
        raise InputError(f"its format is {version}; this ooc-fw reads {_FORMAT} to {_OTHER_TASKS}")
    check_plain_tree(file)
    if CONTENT in attributes and content_crc32(file) != int(attributes[CONTENT]):
        raise DamageError("it does not match its checksum; restore a copy or train again")
    with open_rows(as_node(file["support_vectors"])) as source:
        vectors = source.read(0, source.n_rows)
    kernel = make_kernel(
        get_text(attributes, "kernel"),
        gamma=_number(attributes, "gamma"),
        degree=index(attributes["degree"]),
        coef0=_number(attributes, "coef0"),
    )
    stored = file["machines"]
    classes = _class_values(attributes["class_names"])
    if version == _TABLE:
        classifiers = _read_table(stored)
    else:
        classifiers = [_read_classifier(stored[str(k)]) for k in range(len(stored))]
    task = get_text(attributes, "task") if "task" in attributes else "classification"
    of_task = {
        name: _number(attributes, name) for name in _OF_TASKS["regression"] if name in attributes
    }
    if tuple(of_task) != _OF_TASKS.get(task):
        raise InputError(f"it has {list(of_task)}, which are not the numbers of a model of {task}")
    decision = decision_of(classifiers, len(classes))
    if "decision" in attributes and get_text(attributes, "decision") != decision:
        raise InputError(f"its decision is not {decision!r}, as its classifiers need")
    scaling = Scaling.read(file)
    if "scaling" in file and scaling is None:
        raise InputError("it lacks the kind of its scaling")
    return {
        **of_task,
        "columns": tuple(get_texts(file, COLUMNS) or ()) or None,
        "labels_as": tuple(get_texts(file, LABELS_AS) or ()),
        "table": file[RECORD][...].tobytes().decode("utf-8") if RECORD in file else None,
        "weighted_rows": _vector(file[_WEIGHTED], np.uint8) if _WEIGHTED in file else None,
        "kernel": kernel,
        "C": _number(attributes, "C"),
        "classes": classes,
        "scaling": scaling,
        "status": str(Status(get_text(attributes, "status"))),
        "support_vectors": vectors,
        "classifiers": classifiers,
    }


def as_class_values(classes: npt.ArrayLike) -> npt.NDArray[Any]:
    """Class values as a model holds them: numbers as float64, anything else as text."""
    values = np.asarray(classes)
    return values.astype(np.float64) if values.dtype.kind in "biuf" else values.astype(str)


def _write(file: h5py.File, model: Model) -> None:
    exact = model.kind == "exact"
    table = exact and len(model.classifiers) > _FEW
    version = _TABLE if table else _FORMAT
    file.attrs["format_version"] = version if exact else _LANDMARKS
    if model.task != "classification":
        file.attrs["format_version"] = _OTHER_TASKS
        put_text(file.attrs, "task", model.task)
        for name in _OF_TASKS[model.task]:
            file.attrs[name] = getattr(model, name)
    if not exact:
        put_text(file.attrs, "decision", model.decision)
    put_text(file.attrs, "kernel", model.kernel.name)
    for name in ("gamma", "degree", "coef0"):
        file.attrs[name] = getattr(model.kernel, name)
    file.attrs["C"] = float(model.C)
    put_text(file.attrs, "status", model.status)
    file.attrs["class_names"] = _storable(model.classes)
    if model.scaling is not None:
        model.scaling.write(file)
    if isinstance(model.support_vectors, CSRRows):
        group = file.create_group("support_vectors")
        group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0"})
        group.attrs["shape"] = model.support_vectors.shape
        for part in ("data", "indices", "indptr"):
            group[part] = getattr(model.support_vectors, part)
    else:
        file["support_vectors"] = model.support_vectors
    if model.columns is not None:
        put_texts(file, COLUMNS, model.columns)
    if model.labels_as:
        put_texts(file, LABELS_AS, model.labels_as)
    if model.table is not None:
        file[RECORD] = np.frombuffer(model.table.encode("utf-8"), dtype=np.uint8)
    if model.weighted_rows is not None:
        file[_WEIGHTED] = model.weighted_rows
    if table:
        _write_table(file.create_group("machines"), model.classifiers)
        return
    for k, classifier in enumerate(model.classifiers):
        group = file.create_group(f"machines/{k}")
        if not exact:
            put_text(group.attrs, "kind", classifier.kind)
        for name, value in vars(classifier).items():
            if value is not None and name in _ARRAYS:
                group[name] = np.asarray(value, dtype=_ARRAYS[name])
            elif value is not None:
                text = name in _CLASSES
                group.attrs[name] = _storable(np.asarray(value))[()] if text else float(value)


def _write_table(group: h5py.Group, classifiers: Sequence[Classifier]) -> None:
    """Write the fields of all classifiers, a data set for each."""
    lengths = [len(classifier.alpha) for classifier in classifiers]
    group["indptr"] = np.concatenate([[0], np.cumsum(lengths)])
    for field in fields(BinaryClassifier):
        values = [getattr(classifier, field.name) for classifier in classifiers]
        if field.name in _CLASSES:
            group[field.name] = _storable(np.asarray(values))
        elif field.name not in _ARRAYS:
            group[field.name] = np.array([np.nan if one is None else one for one in values])
        elif values[0] is not None:  # the rows of all classifiers have penalties, or of none
            group[field.name] = np.concatenate(values).astype(_ARRAYS[field.name])


def _read_table(group: h5py.Group) -> list[Classifier]:
    """Classifiers from what `_write_table` wrote."""
    indptr = _vector(group["indptr"], np.int64)
    n = len(indptr) - 1
    columns: dict[str, Sequence[Any]] = {}
    for field in fields(BinaryClassifier):
        name, optional = field.name, str(field.type).endswith("None")
        if name in _CLASSES:
            columns[name] = _class_values(group[name]).tolist()
        elif name not in _ARRAYS:
            numbers = _vector(group[name], np.float64).tolist()
            columns[name] = [None if optional and one != one else one for one in numbers]
        elif name in group or not optional:
            whole = _vector(group[name], _ARRAYS[name])
            check_pointers(indptr, len(whole), f"{group.name}/indptr of {name}")
            columns[name] = np.split(whole, indptr[1:-1])
        else:
            columns[name] = [None] * n
        if len(columns[name]) != n:
            raise InputError(f"{group.name}/{name} has {len(columns[name])} parts instead of {n}")
    return [BinaryClassifier(**{name: of[k] for name, of in columns.items()}) for k in range(n)]


def _read_classifier(group: h5py.Group) -> Classifier:
    kind = get_text(group.attrs, "kind") if "kind" in group.attrs else BinaryClassifier.kind
    records = {record.kind: record for record in (BinaryClassifier, LandmarkClassifier)}
    if kind not in records:
        raise InputError(f"{group.name} is of a kind {kind!r} that this ooc-fw does not know")
    values: dict[str, Any] = {}
    for field in fields(records[kind]):
        name, place = field.name, group if field.name in _ARRAYS else group.attrs
        if name not in place and str(field.type).endswith("None"):
            values[name] = None
        elif name in _ARRAYS:
            values[name] = _vector(place[name], _ARRAYS[name])
        elif name in _CLASSES:
            values[name] = _class_values(place[name]).item()
        else:
            values[name] = _number(place, name)
    return records[kind](**values)


def _number(attributes: Any, name: str) -> float:
    value = np.asarray(attributes[name])
    if value.ndim > 0 or value.dtype.kind not in "iuf":
        raise InputError(f"its {name} is no number")
    return float(value)


def _vector(stored: h5py.Dataset, dtype: type) -> npt.NDArray[Any]:
    """One-dimensional array of `dtype`; InputError for numbers that it does not hold."""
    kinds = "iu" if issubclass(dtype, np.integer) else "f"
    if stored.ndim != 1 or stored.dtype.kind not in kinds:
        raise InputError(f"{stored.name} is {stored.ndim}-dimensional, of type {stored.dtype}")
    values = stored[...]
    converted: npt.NDArray[Any] = np.ascontiguousarray(values, dtype=dtype)
    if kinds == "iu" and (converted != values).any():
        raise InputError(f"{stored.name} has a number that {np.dtype(dtype)} does not hold")
    return converted


def _storable(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Class values in the form that HDF5 attributes take: text as UTF-8 bytes."""
    return np.char.encode(values, "utf-8") if values.dtype.kind == "U" else values


def _class_values(stored: Any) -> npt.NDArray[Any]:
    values = np.asarray(stored)
    if values.dtype.kind == "S":
        return np.asarray(np.char.decode(values, "utf-8"))
    if values.dtype.kind not in "iuf":
        raise InputError(f"its classes are of type {values.dtype}")
    return values.astype(np.float64)
