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
import numpy.typing as npt

from ooc_fw.data.converted import CONTENT, LABELS_AS, content_crc32
from ooc_fw.data.formats import COLUMNS, RECORD, get_text, get_texts, put_text, put_texts
from ooc_fw.data.hdf5 import H5PY_ERRORS, check_plain_tree, open_file
from ooc_fw.data.rows import CSRRows
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.stores import open_rows
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.model import old_files
from ooc_fw.model.machines import ARRAYS, NUMBERS, Machines
from ooc_fw.model.old_files import number_of, vector_of
from ooc_fw.model.pairs import class_sides, decision_of
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import DamageError, InputError, unreadable

if TYPE_CHECKING:
    from ooc_fw.model.record import Model

FORMAT = 5  # of the files that are written; those of older ones are read, too

_RUN = "run"  # data set of text: what a run needs to go on
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
    attributes = file.attrs
    attributes["format_version"] = FORMAT
    for name in ("task", "status"):
        put_text(attributes, name, getattr(model, name))
    put_text(attributes, "kernel", model.kernel.name)
    for name in ("gamma", "degree", "coef0"):
        attributes[name] = getattr(model.kernel, name)
    attributes["C"] = float(model.C)
    for name in ("jitter", *_OF_TASKS[model.task]):
        if getattr(model, name) is not None:
            attributes[name] = getattr(model, name)
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
    for name in ("rows", "penalties", "weighted_rows"):
        if getattr(model, name) is not None:
            file[name] = getattr(model, name)
    if model.classes.dtype.kind == "f":
        file["classes"] = model.classes
    else:
        put_texts(file, "classes", model.classes.tolist())
    if model.columns is not None:
        put_texts(file, COLUMNS, model.columns)
    if model.labels_as:
        put_texts(file, LABELS_AS, model.labels_as)
    for name, text in ((RECORD, model.table), (_RUN, model.run)):
        if text is not None:
            file[name] = np.frombuffer(text.encode("utf-8"), dtype=np.uint8)
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
            _check_content(file)
            yield file
    except (InputError, *H5PY_ERRORS) as error:
        if isinstance(error, InputError) and not isinstance(error, DamageError):
            raise InputError(f"{name} is not a usable model file: {error}") from None
        # What h5py raises for files that were cut short, overwritten, or lack a part.
        raise unreadable(name, error) or InputError(
            f"{name} is not a model file, or is damaged; write it again with ooc-fw train ({error})"
        ) from None


def _check_content(file: h5py.File) -> None:
    """Raise InputError unless it is a model file that matches its checksum."""
    if "kernel" not in file.attrs:
        kind = "holds data" if "X" in file else "holds something else"
        raise InputError(f"it {kind}; give the file that ooc-fw train wrote")
    version = index(file.attrs["format_version"])
    if not 1 <= version <= FORMAT:
        raise InputError(f"its format is {version}; this ooc-fw reads 1 to {FORMAT}")
    check_plain_tree(file)
    if CONTENT in file.attrs and content_crc32(file) != int(file.attrs[CONTENT]):
        raise DamageError("it does not match its checksum; restore a copy or train again")


def fields_of(content: bytes) -> dict[str, Any]:
    """Fields of the `Model` in the content of a file; InputError or OSError for a damaged one."""
    with h5py.File(BytesIO(content), "r") as file:
        _check_content(file)
        return read_fields(file)


def read_fields(file: h5py.File) -> dict[str, Any]:
    """Fields of the `Model` in a file that `opened` gives."""
    attributes = file.attrs
    with open_rows(file["support_vectors"]) as source:
        vectors = source.read(0, source.n_rows)
    kernel = make_kernel(
        get_text(attributes, "kernel"),
        gamma=number_of(attributes, "gamma"),
        degree=index(attributes["degree"]),
        coef0=number_of(attributes, "coef0"),
    )
    task = get_text(attributes, "task") if "task" in attributes else "classification"
    names = [name for name in _OF_TASKS["regression"] if name in attributes]
    if tuple(names) != _OF_TASKS.get(task):
        raise InputError(f"it has {names}, which are not the numbers of a model of {task}")
    scaling = Scaling.read(file)
    if "scaling" in file and scaling is None:
        raise InputError("it lacks the kind of its scaling")
    trained = _read_trained if attributes["format_version"] == FORMAT else old_files.read_trained
    weighted = vector_of(file["weighted_rows"], np.uint8) if "weighted_rows" in file else None
    return {
        **{name: number_of(attributes, name) for name in names},
        **trained(file, len(vectors)),
        "columns": tuple(get_texts(file, COLUMNS) or ()) or None,
        "labels_as": tuple(get_texts(file, LABELS_AS) or ()),
        "table": _text_of(file, RECORD),
        "run": _text_of(file, _RUN),
        "weighted_rows": weighted,
        "kernel": kernel,
        "C": number_of(attributes, "C"),
        "scaling": scaling,
        "status": str(Status(get_text(attributes, "status"))),
        "support_vectors": vectors,
    }


def _text_of(file: h5py.File, name: str) -> str | None:
    return file[name][...].tobytes().decode("utf-8") if name in file else None


def _read_trained(file: h5py.File, n_vectors: int) -> dict[str, Any]:
    """Classes, classifiers and what they share."""
    stored = file["classes"]
    classes: npt.NDArray[Any]
    if stored.dtype.kind == "S":
        classes = np.array(get_texts(file, "classes"))
    else:
        classes = vector_of(stored, np.float64)
    group = file["machines"]
    arrays = {name: vector_of(group[name], kind) for name, kind in ARRAYS.items()}
    numbers = {name: vector_of(group[name], np.float64) for name in NUMBERS}
    has_penalties = "penalties" in file
    trained = {
        "classes": classes,
        "machines": Machines(**arrays, **numbers),
        "rows": vector_of(file["rows"], np.int64),
        "penalties": vector_of(file["penalties"], np.float64) if has_penalties else None,
        "jitter": number_of(file.attrs, "jitter") if "jitter" in file.attrs else None,
    }
    sides = [vector_of(group[name], np.int64) for name in ("negative", "positive")]
    decision = decision_of(len(classes), landmarks=trained["jitter"] is not None)
    if not np.array_equal(np.column_stack(sides), class_sides(len(classes), decision)):
        raise InputError("its classifiers are not those of its classes")
    return trained
