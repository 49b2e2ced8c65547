"""The model file: HDF5 of a few megabytes; reading it runs no code.

``ooc-fw help files`` describes the layout. The last bytes are a checksum of all others. It is
compared on loading, so what follows trusts the arrays and their types.
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

from ooc_fw.data.containers import open_file, open_rows
from ooc_fw.data.converted import check_seal, seal
from ooc_fw.data.formats import COLUMNS, as_bytes, as_text, get_texts
from ooc_fw.data.labels import Classes
from ooc_fw.data.rows import CSRRows
from ooc_fw.data.scaling import Scaling
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.model.machines import NUMBERS, Classifier
from ooc_fw.model.trained import Trained, demand
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import DamageError, InputError, unreadable

Record = TypeVar("Record", bound=Trained)

FORMAT = 7  # before 7, no rows are divided by their norms; formats before 6 are refused

# Fields of a model by the way they are stored: as attributes, as texts (in bytes), as arrays.
_ATTRIBUTES = ("C", "jitter", "offset", "spread", "epsilon", "threshold")
_TEXTS = ("table", "origin", "run")
_VECTORS = ("rows", "weighted_rows", "penalties", "class_penalties", "penalty_sums")


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
    seal(content)
    return content.getvalue()


def read_model(path: str | os.PathLike[str], record: type[Record]) -> Record:
    """Read a model file into a `record`. Defects raise an InputError that names the file."""
    name = os.fspath(path)
    if not os.path.exists(name):
        raise InputError(f"there is no model file {name}; write one with ooc-fw train")
    try:
        with open_file(name) as file:
            return record(**_read_fields(file))
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
    demand(version >= 6, f"{words}; train it again")
    check_seal(file.filename)
    with open_rows(file["support_vectors"]) as source:
        vectors = source.read(0, source.n_rows)
    kernel = make_kernel(
        as_text(attributes["kernel"]),
        gamma=float(attributes["gamma"]),
        degree=index(attributes["degree"]),
        coef0=float(attributes["coef0"]),
    )
    status = str(Status(as_text(attributes["status"])))
    fields: dict[str, Any] = {"kernel": kernel, "support_vectors": vectors, "status": status}
    fields["scaling"] = Scaling.read(file) or Scaling()
    for name in _ATTRIBUTES:
        if name in attributes:
            fields[name] = float(attributes[name])
    fields["n_rows"] = index(attributes["n_rows"])
    for name in _TEXTS:
        if name in file:
            fields[name] = file[name][...].tobytes().decode("utf-8")
    fields["origin"] = json.loads(fields.get("origin", "{}"))
    for name in _VECTORS:
        if name in file:
            fields[name] = file[name][...]
    if COLUMNS in file:
        fields["columns"] = tuple(get_texts(file, COLUMNS) or ())
    classes = file["classes"]
    fields["classes"] = (
        np.array(get_texts(file, "classes")) if classes.dtype.kind == "S" else classes[...]
    )
    group = file["machines"]
    numbers: Any = np.column_stack([group[name][...] for name in NUMBERS])
    known = np.where(np.isnan(numbers), None, numbers)
    sv = group["sv"][...]
    beta = group["beta"][...]
    fields["classifiers"] = [
        Classifier(sv[start:stop], beta[start:stop], *own)
        for (start, stop), own in zip(pairwise(group["indptr"][...]), known, strict=True)
    ]
    return fields
