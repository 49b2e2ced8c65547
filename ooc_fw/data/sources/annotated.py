"""AnnData: columns of its files, whichever library opened them, and AnnData objects in memory.

A column of ``obs`` is an array, or a group: of codes and the categories that they stand for, or of
values and a mask of the missing ones. Before version 0.8 an array of codes refers to its categories
by an attribute. Before 0.7 ``obs`` is one table of records, and categories are in ``uns``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.data.attributes import as_text
from ooc_fw.data.rows import AnyArray
from ooc_fw.data.sources.base import RowSource, Sliceable
from ooc_fw.data.sources.views import SubsetSource, ranges_of
from ooc_fw.system.errors import InputError

Missing: TypeAlias = Literal["refuse", "drop"]
"""Whether a row without a label is an error, or left out."""

_PART = 1 << 20  # codes or marks that are read together


@dataclass(frozen=True)
class Labels:
    """Labels of rows, and which of them are missing; None where none is."""

    values: Sliceable
    missing: npt.NDArray[np.bool_] | None = None


class _Coded:
    """Categories, given by their codes; those that are missing are never read."""

    def __init__(self, codes: Any, categories: AnyArray) -> None:
        self._codes, self._categories = codes, categories

    def __len__(self) -> int:
        return int(self._codes.shape[0])

    def __getitem__(self, key: slice) -> AnyArray:
        return np.asarray(self._categories[np.asarray(self._codes[key])])


class Field:
    """A field of a table of records, which is like an array of its own."""

    def __init__(self, table: Any, name: str) -> None:
        self._table, self._field, self.dtype = table, name, table.dtype[name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def __len__(self) -> int:
        return int(self._table.shape[0])

    def __getitem__(self, key: slice) -> AnyArray:
        return np.asarray(self._table[key][self._field])


def is_array(node: Any) -> bool:
    """Whether a node of a file or store is an array, rather than a group."""
    return hasattr(node, "shape")


def find_column(root: Any, path: str, find: Callable[[Any, str], Any]) -> Any:
    """Column at a path below `root` or its ``obs``: an array or what `is_column` may know, or None.

    ``find(group, path)`` is the object at a path below a group.
    """
    for place in (path, f"obs/{path}"):
        above, _, name = place.rstrip("/").rpartition("/")
        node, table, categories = find(root, place), find(root, above), None
        if node is None and is_array(table) and name in (table.dtype.names or ()):
            node = Field(table, name)
            if node.dtype.kind in "iu":
                categories = find(root, f"uns/{name}_categories")
        elif is_array(node):
            known = node.attrs.get("categories")
            if isinstance(known, str | bytes):
                categories = find(table, as_text(known))
            elif isinstance(known, h5py.Reference):
                categories = node.file[known]
        if node is not None:
            return node if categories is None else {"codes": node, "categories": categories}
    return None


def column_names(root: Any, find: Callable[[Any, str], Any]) -> list[str]:
    """Paths of the columns of ``obs``."""
    obs = find(root, "obs")
    names = [] if obs is None else obs.dtype.names or () if is_array(obs) else list(obs)
    return [f"obs/{name}" for name in names if name not in ("_index", "__categories")]


def feature_names(
    root: Any,
    x_name: str,
    find: Callable[[Any, str], Any],
    open_array: Callable[[Any], Any],
    n_features: int,
) -> list[str] | None:
    """Names of the columns of X, or of a layer, in the ``var`` beside it; None where none are.

    `find` and `open_array` are as for `find_column` and `column_labels`.
    """
    place = _place_of_names(x_name)
    var = None if place is None else find(root, place)
    if var is None or (is_array(var) and not var.dtype.names):
        return None
    index = var.dtype.names[0] if is_array(var) else as_text(var.attrs.get("_index", "_index"))
    names = find_column(root, f"{place}/{index}", find)
    if is_array(names):
        values = open_array(names)
    elif names is not None and is_column(names):
        values = column_labels(names, open_array, f"the names {place}/{index}").values
    else:
        return None
    found = [as_text(name) for name in np.asarray(values[0:n_features]).tolist()]
    return found if len(values) == n_features else None


def _place_of_names(x_name: str) -> str | None:
    """Path of the names of the columns of "X" or "layers/...", of the whole or of a part."""
    parts = x_name.strip("/").split("/")
    above = parts[:-1] if parts[-1] == "X" else parts[:-2] if parts[-2:-1] == ["layers"] else None
    return None if above is None else "/".join([*above, "var"])


def is_column(group: Any) -> bool:
    """Whether a group of a file is a column with categories, or with missing values."""
    return {"codes", "categories"} <= set(group) or {"values", "mask"} <= set(group)


def column_labels(group: Any, open_array: Callable[[Any], Any], what: str) -> Labels:
    """Labels in a group that `is_column`; `what` names them in messages.

    `open_array` gives the slices of an array in it, text as objects or text.
    """
    if "codes" not in set(group):
        values, mask = open_array(group["values"]), open_array(group["mask"])
        _check_lengths(what, values, mask)
        parts = [np.asarray(mask[k : k + _PART]) for k in range(0, mask.shape[0], _PART)]
        return _with_missing(values, np.concatenate(parts).astype(bool))
    codes, categories = open_array(group["codes"]), open_array(group["categories"])
    if codes.dtype.kind not in "iu" or len(codes.shape) != 1:
        raise InputError(f"{what}: its codes are no list of whole numbers; write it again")
    found = np.asarray(categories[0 : categories.shape[0]])
    if found.dtype.kind not in "biuf":
        try:
            found = np.array([as_text(word) for word in found.tolist()], dtype=np.str_)
        except UnicodeDecodeError:
            raise InputError(f"{what}: its categories are not UTF-8 text; write it again") from None
    missing = []
    for start in range(0, codes.shape[0], _PART):
        part = np.asarray(codes[start : start + _PART])
        if len(part) and not -1 <= int(part.min()) <= int(part.max()) < len(found):
            raise InputError(f"{what} has codes that are none of its {len(found)} categories")
        missing.append(part < 0)
    return _with_missing(_Coded(codes, found), np.concatenate([*missing, np.zeros(0, bool)]))


def with_missing_numbers(values: Sliceable) -> Labels:
    """Labels in an array, of which the numbers that are NaN are missing."""
    dtype = getattr(values, "dtype", None)
    if dtype is None or np.dtype(dtype).kind != "f":
        return Labels(values)
    starts = range(0, len(values), _PART)
    parts = [np.isnan(np.asarray(values[k : k + _PART])) for k in starts]
    return _with_missing(values, np.concatenate([*parts, np.zeros(0, bool)]))


def _with_missing(values: Any, missing: npt.NDArray[np.bool_]) -> Labels:
    return Labels(values, missing if missing.any() else None)


def _check_lengths(what: str, values: Any, mask: Any) -> None:
    if tuple(values.shape) != tuple(mask.shape) or len(values.shape) != 1:
        raise InputError(f"{what}: its values and its mask differ in shape; write it again")


def check_missing(labels: Labels, what: str, missing: Missing) -> None:
    """Raise InputError for labels that are missing, unless their rows are left out."""
    if labels.missing is not None and missing == "refuse":
        raise InputError(
            f"{np.count_nonzero(labels.missing)} of {len(labels.missing)} rows have no label in "
            f"{what}; leave them out (--missing-labels drop, or missing_labels= in Python)"
        )


def without_missing(source: RowSource, labels: Labels) -> RowSource:
    """The rows that have a label."""
    if labels.missing is None:
        return source
    kept = SubsetSource(source, ranges_of(np.flatnonzero(~labels.missing)))
    kept.stamps = source.stamps
    kept.own(source.close)
    return kept


def is_annotated(data: Any) -> bool:
    """Whether `data` is an AnnData object, or alike."""
    return all(hasattr(data, name) for name in ("X", "obs", "var_names", "shape"))


def rows_of_annotated(data: Any, x_name: str) -> Any:
    """Rows of an AnnData object: "X", or those with a path "layers/..." or "obsm/..."."""
    kind, _, name = x_name.partition("/")
    if kind == "X":
        rows = data.X
    elif kind in ("layers", "obsm") and name in getattr(data, kind):
        rows = getattr(data, kind)[name]
    else:
        has = [f"{part}/{key}" for part in ("layers", "obsm") for key in getattr(data, part)]
        raise InputError(
            f"this {type(data).__name__} has no rows {x_name!r}; it has {', '.join(['X', *has])}"
        )
    if rows is None:
        raise InputError(f"this {type(data).__name__} has no X; name other rows (x_name=)")
    return getattr(rows, "group", rows)  # of a file: the group that it reads


def labels_of_annotated(data: Any, name: str) -> Labels:
    """A column of the ``obs`` of an AnnData object."""
    name = name.removeprefix("obs/")
    if name not in data.obs:
        has = ", ".join(map(str, data.obs.columns)) or "none"
        raise InputError(f"the obs of this {type(data).__name__} has no {name!r}; it has {has}")
    column = data.obs[name]
    missing = np.asarray(column.isna())
    kept = column[~missing]
    values = np.asarray(kept.to_numpy())
    if values.dtype.kind == "O":
        values = np.asarray(kept.astype(str).to_numpy(), dtype=np.str_)
    whole = np.zeros(len(missing), dtype=values.dtype)
    whole[~missing] = values
    return _with_missing(whole, missing)


def names_of_annotated(data: Any, x_name: str) -> Sequence[str] | None:
    """Names of the columns of X and of layers."""
    return [as_text(name) for name in data.var_names] if _place_of_names(x_name) else None
