"""The model file: an HDF5 file of a few megabytes, read without running any code.

``ooc-fw help files`` describes its layout. The attribute ``content_crc32`` covers all of it and is
compared on loading; a file without it is read nevertheless.
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

from ooc_fw.data.converted import CONTENT, content_crc32
from ooc_fw.data.formats import COLUMNS, RECORD, get_text, get_texts, put_text, put_texts
from ooc_fw.data.hdf5 import H5PY_ERRORS, check_plain_tree, open_file
from ooc_fw.data.rows import CSRRows
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.stores import open_rows
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.model import old_files
from ooc_fw.model.machines import ARRAYS, NUMBERS, Machines, demand
from ooc_fw.model.old_files import number_of, vector_of
from ooc_fw.model.pairs import class_sides, count_classifiers, decision_of
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import DamageError, InputError, unreadable

if TYPE_CHECKING:
    from ooc_fw.model.record import Model

FORMAT = 5  # of the files that are written; those of older ones are read, too

_VECTORS = {"rows": np.int64, "penalties": np.float64, "weighted_rows": np.uint8}
_TEXTS = {"columns": COLUMNS}
_LONG_TEXTS = {"table": RECORD, "run": "run"}
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
    for name, place in _TEXTS.items():
        if getattr(model, name):
            put_texts(file, place, getattr(model, name))
    for name, place in _LONG_TEXTS.items():
        if getattr(model, name) is not None:
            file[place] = np.frombuffer(getattr(model, name).encode("utf-8"), dtype=np.uint8)
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
    except (InputError, *H5PY_ERRORS) as error:
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
    if not 1 <= version <= FORMAT:
        raise InputError(f"its format is {version}; this ooc-fw reads 1 to {FORMAT}")
    check_plain_tree(file)
    if CONTENT in attributes and content_crc32(file) != int(attributes[CONTENT]):
        raise DamageError("it does not match its checksum; restore a copy or train again")
    task = get_text(attributes, "task") if "task" in attributes else "classification"
    names = tuple(name for name in _OF_TASKS["regression"] if name in attributes)
    if names != _OF_TASKS.get(task):
        raise InputError(f"it has {names}, which are not the numbers of a model of {task}")
    scaling = Scaling.read(file)
    if "scaling" in file and scaling is None:
        raise InputError("it lacks the kind of its scaling")
    with open_rows(file["support_vectors"]) as source:
        vectors = source.read(0, source.n_rows)
    fields: dict[str, Any] = {
        "kernel": make_kernel(
            get_text(attributes, "kernel"),
            gamma=number_of(attributes, "gamma"),
            degree=index(attributes["degree"]),
            coef0=number_of(attributes, "coef0"),
        ),
        "scaling": scaling,
        "status": str(Status(get_text(attributes, "status"))),
        "support_vectors": vectors,
    }
    for name in ("C", *names, *(["jitter"] if "jitter" in attributes else [])):
        fields[name] = number_of(attributes, name)
    for name, dtype in _VECTORS.items():
        if name in file:
            fields[name] = vector_of(file[name], dtype)
    for name, place in _TEXTS.items():
        if place in file:
            fields[name] = tuple(get_texts(file, place) or ())
    for name, place in _LONG_TEXTS.items():
        if place in file:
            fields[name] = vector_of(file[place], np.uint8).tobytes().decode("utf-8")
    if version < FORMAT:
        return fields | old_files.read_trained(file, len(vectors))
    if file["classes"].dtype.kind == "S":
        fields["classes"] = np.array(get_texts(file, "classes"))
    else:
        fields["classes"] = vector_of(file["classes"], np.float64)
    n_classes = len(fields["classes"])
    landmarks = "jitter" in fields
    fields["machines"] = _read_machines(file["machines"], n_classes, landmarks)
    return fields


def _read_machines(group: h5py.Group, n_classes: int, landmarks: bool) -> Machines:
    """The classifiers of so many classes."""
    sides = [vector_of(group[name], np.int64) for name in ("negative", "positive")]
    decision = decision_of(n_classes, landmarks=landmarks)
    demand(
        len(sides[0]) == count_classifiers(n_classes, decision)
        and np.array_equal(np.column_stack(sides), class_sides(n_classes, decision)),
        "its classifiers are not those of its classes",
    )
    kinds = ARRAYS | dict.fromkeys(NUMBERS, np.float64)
    return Machines(**{name: vector_of(group[name], kind) for name, kind in kinds.items()})
