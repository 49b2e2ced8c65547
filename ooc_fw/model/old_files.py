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
from ooc_fw.model.machines import NUMBERS, Machines, demand
from ooc_fw.model.pairs import count_classifiers, decision_of, side_names
from ooc_fw.system.errors import InputError

_KINDS = {
    **dict.fromkeys(("alpha", "beta", "C"), np.float64),
    **dict.fromkeys(("sv", "landmarks", "rows"), np.int64),
    "labels": np.int8,
}
"""Types of the arrays of classifiers; all else are numbers and class values."""


def number_of(attributes: Any, name: str) -> float:
    """A number that is an attribute; InputError for anything else."""
    value = np.asarray(attributes[name])
    demand(value.ndim == 0 and value.dtype.kind in "iuf", f"its {name} is not a number")
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
    jitters = {part.get("jitter") for part in parts}
    demand(len(jitters) == 1, "its classifiers are not all exact, or of one jitter")
    jitter = jitters.pop()
    decision = decision_of(len(classes), landmarks=jitter is not None)
    if "decision" in file.attrs and get_text(file.attrs, "decision") != decision:
        raise InputError(f"its decision is not {decision!r}, as its classifiers need")
    names = [(part["negative"], part["positive"]) for part in parts]
    demand(
        len(names) == count_classifiers(len(classes), decision)
        and names == side_names(classes, decision),
        "its classifiers are not those of its classes",
    )
    rows = np.full(n_vectors, -1)
    penalties = np.full(n_vectors, number_of(file.attrs, "C"))
    for part in parts:
        places = part["sv" if jitter is None else "landmarks"]
        inside = ((places >= 0) & (places < n_vectors)).all()
        demand(inside, f"a classifier points outside the {n_vectors} vectors")
        same = (rows[places] == -1) | (rows[places] == part["rows"])
        demand(same.all(), "a support vector is of two rows, or landmarks differ")
        rows[places] = part["rows"]
        penalties[places] = part.get("C", penalties[places])
        part["places"] = places
        if jitter is None:
            usable = (part["alpha"] >= 0).all() and (np.abs(part["labels"]) == 1).all()
            demand(usable, "weights must not be negative, and labels -1 or +1")
            part["beta"] = part["alpha"] * part["labels"]
        else:
            part["rho"] = 1.0
    numbers = {name: [part.get(name, np.nan) for part in parts] for name in NUMBERS}
    places, betas = ([part[name] for part in parts] for name in ("places", "beta"))
    return {
        "classes": classes,
        "machines": Machines.of(places, betas, **numbers),
        "rows": rows,
        "penalties": penalties if "C" in parts[0] else None,
        "jitter": jitter,
    }


def _parts_of_groups(group: h5py.Group) -> list[dict[str, Any]]:
    """Fields of each classifier by name, from a group for each."""
    parts = []
    for k in range(len(group)):
        own = group[str(k)]
        part: dict[str, Any] = {}
        for name, stored in own.items():
            part[name] = vector_of(stored, _KINDS[name])
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
    return [dict(zip(columns, own, strict=True)) for own in zip(*columns.values(), strict=True)]


def _class_values(stored: Any) -> npt.NDArray[Any]:
    values = np.asarray(stored)
    if values.dtype.kind == "S":
        return np.asarray(np.char.decode(values, "utf-8"))
    demand(values.dtype.kind in "iuf", f"its classes are of type {values.dtype}")
    return values.astype(np.float64)
