"""Model files of ooc-fw 0.2, in formats 1 to 4: each classifier has its own rows and penalties.

``/machines/k`` is classifier k. Format 3 has arrays of all classifiers in ``/machines``. Formats 1
and 3 are exact, 2 is of landmarks, and 4, which has a `task`, may be either.
"""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.data.formats import get_text
from ooc_fw.data.rows import check_pointers
from ooc_fw.model.machines import NUMBERS, Machines
from ooc_fw.model.pairs import decision_of, side_names
from ooc_fw.system.errors import InputError

_KINDS = {
    **dict.fromkeys(("alpha", "beta", "C"), np.float64),
    **dict.fromkeys(("sv", "landmarks", "rows"), np.int64),
    "labels": np.int8,
}


def number_of(attributes: Any, name: str) -> float:
    """A number that is an attribute; InputError for anything else."""
    value = np.asarray(attributes[name])
    if value.ndim > 0 or value.dtype.kind not in "iuf":
        raise InputError(f"its {name} is not a number")
    return float(value)


def vector_of(stored: h5py.Dataset, dtype: type) -> npt.NDArray[Any]:
    """One-dimensional array of `dtype`; InputError for numbers that it does not hold."""
    kinds = "iu" if issubclass(dtype, np.integer) else "f"
    if stored.ndim != 1 or stored.dtype.kind not in kinds:
        raise InputError(f"{stored.name} is {stored.ndim}-dimensional, of type {stored.dtype}")
    values = stored[...]
    converted: npt.NDArray[Any] = np.ascontiguousarray(values, dtype=dtype)
    if kinds == "iu" and (converted != values).any():
        raise InputError(f"{stored.name} has a number that {np.dtype(dtype)} does not hold")
    return converted


def read_trained(file: h5py.File, n_vectors: int) -> dict[str, Any]:
    """Classes, classifiers and what they share, on so many support vectors."""
    group = file["machines"]
    classes = _class_values(file.attrs["class_names"])
    parts = _parts_of_table(group) if "indptr" in group else _parts_of_groups(group)
    with_landmarks = {"jitter" in part for part in parts}
    if len(with_landmarks) != 1:
        raise InputError("it has no classifiers, or both exact ones and others with landmarks")
    landmarks = with_landmarks == {True}
    decision = decision_of(len(classes), landmarks=landmarks)
    if "decision" in file.attrs and get_text(file.attrs, "decision") != decision:
        raise InputError(f"its decision is not {decision!r}, as its classifiers need")
    if [(part["negative"], part["positive"]) for part in parts] != side_names(classes, decision):
        raise InputError("its classifiers are not those of its classes")
    jitters = {part.get("jitter") for part in parts}
    if len(jitters) > 1:
        raise InputError("its classifiers have different jitters")
    rows = np.full(n_vectors, -1)
    penalties = np.full(n_vectors, number_of(file.attrs, "C"))
    for part in parts:
        places = part["places"]
        if not 0 <= places.min(initial=0) <= places.max(initial=0) < n_vectors:
            raise InputError(f"a classifier points outside the {n_vectors} vectors")
        if ((rows[places] != -1) & (rows[places] != part["rows"])).any():
            raise InputError("a support vector is of two rows, or landmarks differ")
        rows[places] = part["rows"]
        penalties[places] = part.get("C", penalties[places])
    betas = [part["beta"] if landmarks else _signed(part) for part in parts]
    numbers = {name: [part.get(name, np.nan) for part in parts] for name in NUMBERS}
    if landmarks:
        numbers["rho"] = [1.0] * len(parts)
    return {
        "classes": classes,
        "machines": Machines.of([part["places"] for part in parts], betas, **numbers),
        "rows": rows,
        "penalties": penalties if "C" in parts[0] else None,
        "jitter": jitters.pop(),
    }


def _parts_of_groups(group: h5py.Group) -> list[dict[str, Any]]:
    """Fields of each classifier by name, from a group for each."""
    parts = []
    for k in range(len(group)):
        own = group[str(k)]
        part: dict[str, Any] = {
            name: vector_of(stored, _KINDS[name]) for name, stored in own.items()
        }
        part["places"] = part["landmarks" if "kind" in own.attrs else "sv"]
        for name in own.attrs:
            if name in ("positive", "negative"):
                part[name] = _class_values(own.attrs[name]).item()
            elif name != "kind":
                part[name] = number_of(own.attrs, name)
        parts.append(part)
    return parts


def _parts_of_table(group: h5py.Group) -> list[dict[str, Any]]:
    """The same from arrays of all classifiers, which are exact."""
    indptr = vector_of(group["indptr"], np.int64)
    columns: dict[str, Any] = {}
    for name, stored in group.items():
        if name in _KINDS:
            whole = vector_of(stored, _KINDS[name])
            check_pointers(indptr, len(whole), f"{group.name}/indptr of {name}")
            columns[name] = np.split(whole, indptr[1:-1])
        elif name in ("positive", "negative"):
            columns[name] = _class_values(stored).tolist()
        elif name != "indptr":
            columns[name] = vector_of(stored, np.float64).tolist()
    columns["places"] = columns["sv"]
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _signed(part: dict[str, Any]) -> npt.NDArray[Any]:
    """Weights times labels of an exact classifier."""
    alpha, labels = part["alpha"], part["labels"]
    if not (alpha >= 0).all():
        raise InputError("weights must not be negative")
    if not (np.abs(labels) == 1).all():
        raise InputError("labels must be -1 or +1")
    return np.asarray(alpha * labels)


def _class_values(stored: Any) -> npt.NDArray[Any]:
    values = np.asarray(stored)
    if values.dtype.kind == "S":
        return np.asarray(np.char.decode(values, "utf-8"))
    if values.dtype.kind not in "iuf":
        raise InputError(f"its classes are of type {values.dtype}")
    return values.astype(np.float64)
