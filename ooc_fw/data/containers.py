"""Rows, labels and names in HDF5, zarr and AnnData, which are read without conversion.

Rows are an array of two dimensions, or a group with the three arrays of a CSR matrix. Labels are an
array. In AnnData they are a column of ``obs``, which is an array or a group: codes with their
categories, or values with a mask for the missing ones. The index of ``var`` names the columns. An
AnnData object in RAM has the same parts as its file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, TypeAlias

import h5py
import numpy as np

from ooc_fw.data import arrays, formats
from ooc_fw.data.arrays import FileArray, ReadArray, Sliceable, open_array, path_of
from ooc_fw.data.converted import Sums, checked, is_converted, read_checksums
from ooc_fw.data.formats import as_text, reading
from ooc_fw.data.labels import coded_labels, typed
from ooc_fw.data.rows import FLOAT32, AnyArray
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import ArraySource, CSRSource, RowSource, StoredStatistics, stamp_of
from ooc_fw.data.views import ScaledSource
from ooc_fw.system.errors import InputError

Node: TypeAlias = Any  # any array, a group of h5py or zarr, or the `parts_of` an AnnData object

_CSR_PARTS = ("data", "indices", "indptr")


def open_file(path: str) -> Any:
    """Open an HDF5 file for reading; HDF5 itself refuses one that was cut short."""
    formats.check_regular(path)
    with reading(path):
        return h5py.File(path, "r")


def close_file(file: Any) -> None:
    """Close an HDF5 file that may be damaged."""
    with suppress(Exception):
        file.close()


def is_annotated(data: Any) -> bool:
    """Whether `data` has the parts of an AnnData object."""
    return all(hasattr(data, name) for name in ("X", "obs", "var_names", "shape"))


def parts_of(data: Any) -> dict[str, Any]:
    """Parts of an AnnData object by their paths in its file."""
    tables = {kind: getattr(data, kind) for kind in ("layers", "obsm", "obs")}
    found = {f"{kind}/{name}": table[name] for kind, table in tables.items() for name in table}
    found |= {"X": data.X, "var/_index": data.var_names}
    return {name: getattr(part, "group", part) for name, part in found.items()}


def is_group(node: Node) -> bool:
    """Whether a node is a group of arrays."""
    return isinstance(node, h5py.Group) or (arrays.is_zarr(node) and not hasattr(node, "shape"))


def find(group: Node, path: str) -> Any:
    """Array or group at a path below a group; None if there is none."""
    path = path.strip("/")
    if isinstance(group, h5py.Group):  # its get() returns None for damaged nodes, too
        return group[path] if path in group else None
    return group.get(path)


def open_container(
    root: Node, x_names: Sequence[str] = ("X",), y_names: Sequence[str] = ("y",)
) -> RowSource:
    """Open rows and labels in a group or in `parts_of`; without `y_names` there are no labels.

    A converted file takes the last of the names, and all others take the first. If the user gave
    one name only, there must be labels of this name.
    """
    path = path_of(root)
    with reading(path):
        is_own = is_converted(root)
        x_name = x_names[-is_own].strip("/")
        rows = _find_rows(root, x_name)
        sums = read_checksums(root) if is_own else {}
        labels = None
        label = ""
        if y_names and rows is not root:
            label = y_names[-is_own]
            labels = _find_labels(root, label, sums, is_given=len(y_names) == 1)
        is_table = is_own and x_name == "X"  # the attributes of a converted file describe X
        source = open_rows(rows, labels, sums if is_table else {})
        source.name = path
        if not is_own and rows is not root:
            source.choices = _names_of(root)
        if is_own and labels is not None and label == "y":
            source.targets = bool(root.attrs.get(formats.TARGETS, False))
        origin = {"x_name": x_name}
        if is_table:
            _adopt(source, root, sums)
            origin = json.loads(as_text(root.attrs.get(formats.ORIGIN, "{}")))
        if labels is None or label != "y":  # the origin tells nothing of such labels
            origin = {name: origin[name] for name in origin if name == "x_name"}
        if labels is not None and label != "y":
            origin["label"] = label
        source.origin = {} if rows is root else origin
        beside = re.fullmatch(r"(.*/)?(X|layers/[^/]+)", x_name)
        if beside is not None and source.columns is None:
            names = _names_in(root, f"{beside[1] or ''}var")
            source.columns = names if names and len(names) == source.n_features else None
        return _scaled(source, root) if is_table else source


def _find_rows(root: Node, x_name: str) -> Node:
    """The array or the group (a CSR matrix) that holds the rows; InputError if there is none."""
    rows = find(root, x_name)
    if rows is not None:
        return rows
    if {*_CSR_PARTS} <= {*root}:
        return root
    raise InputError(
        f"{path_of(root)} has no {x_name!r} (it has: {', '.join(_names_of(root)) or 'nothing'}); "
        f"name its rows (--x-name, or x_name= in Python)"
    )


def open_rows(node: Node, labels: Sliceable | None = None, sums: Sums | None = None) -> RowSource:
    """Open an array as dense rows, a group or matrix as sparse ones; `sums` are their checksums."""
    if hasattr(node, "tocsr"):
        return CSRSource(node.tocsr(), labels)
    sums = sums or {}
    source: RowSource
    if is_group(node):
        path = path_of(node)
        shape, stored = _open_csr(node, is_own=bool(sums))
        values = stored["data"]
        parts = {part: checked(array, path, f"X/{part}", sums) for part, array in stored.items()}
        source = CSRSource(SimpleNamespace(**parts, shape=shape), labels, path)
        node = node["data"]
    else:
        columns = names_of_frame(node)
        check_no_dates(node, columns)
        values = open_array(node)
        if columns is not None and values.dtype.hasobject:
            with suppress(ValueError, TypeError):  # columns of different types may all be numbers
                values = values.astype(np.float64)
        path = path_of(values if isinstance(values, FileArray) else node)
        stored = {"data": values}
        source = ArraySource(checked(values, path, "X", sums), labels, path)
        source.columns = columns
    for array in stored.values():
        if isinstance(array, ReadArray):
            source.hold(array)
    if getattr(values, "compressed", False):
        source.span_rows = source.chunk_rows
        source.max_gap = source.chunk_rows
    if isinstance(node, h5py.Dataset) and arrays.is_plain_file(node.file):
        # The stamp of the open file, since another file may have its name by this time.
        source.stamps[path] = stamp_of(node.file.id.get_vfd_handle())
    elif isinstance(values, FileArray):
        source.stamps[path] = stamp_of(path)
    return source


def _open_csr(group: Node, *, is_own: bool) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Shape and arrays of sparse rows; InputError if they do not fit each other."""
    # Converted files store their encoding as text of variable length, which no checksum covers.
    kind = "csr" if is_own else as_text(group.attrs.get("encoding-type", "csr"))
    shape = np.ravel(group.attrs.get("shape", ())).tolist()
    found = {part: open_array(group[part]) for part in _CSR_PARTS if part in group}
    lengths = [array.shape for array in found.values()]
    kinds = [array.dtype.kind for array in found.values()]
    if (
        kind not in ("csr", "csr_matrix")
        or len(shape) != 2
        or len(found) != 3
        or lengths != [(len(found["data"]),)] * 2 + [(shape[0] + 1,)]
        or not {*kinds[1:]} <= {"i", "u"}
    ):
        raise InputError(
            f"{arrays.place_of(group)} must be an array, or sparse rows: data, as many column "
            f"numbers in indices, and row pointers in indptr, with the attribute 'shape'; it is a "
            f"{kind} of shape {shape} and lengths {lengths}: write it by rows (tocsr() in Python)"
        )
    return tuple(map(int, shape)), found


def names_of_frame(data: Any) -> list[str] | None:
    """Names of the columns of a frame or table in RAM, as text; None for other objects."""
    names = getattr(data, "column_names", getattr(data, "columns", None))
    if names is None or len(getattr(data, "shape", ())) != 2:
        return None
    return [as_text(name) for name in names]


def without_column(data: Any, labels: Any) -> tuple[Any, Any]:
    """A frame without the column that `labels` names, and this column; else both as given."""
    names = (names_of_frame(data) or []) if isinstance(labels, str) else []
    if labels not in names:
        return data, labels
    others = [name for name in names if name != labels]
    return data.select(others) if hasattr(data, "select") else data[others], data[labels]


def check_no_dates(frame: Any, names: Sequence[str] | None) -> None:
    """Raise InputError for a frame with times, whose numbers depend on the kind of the frame."""
    kinds = getattr(getattr(frame, "schema", None), "types", getattr(frame, "dtypes", ()))
    for name, kind in zip(names or (), kinds, strict=False):
        if str(kind).lower().startswith(("date", "time", "duration")):
            raise InputError(
                f"column {name!r} of this {type(frame).__name__} holds {kind}; turn it into "
                f"numbers, such as seconds since 1970, or leave it out"
            )


def _adopt(source: RowSource, root: Any, sums: Sums) -> None:
    """Set the attributes of `source` that a converted file stores."""
    attributes = root.attrs
    source.shuffled = bool(attributes.get("shuffled", False))
    source.columns = formats.get_texts(attributes, formats.COLUMNS)
    record = attributes.get(formats.RECORD)
    source.table = None if record is None else as_text(record)
    source.statistics = StoredStatistics(root["mean"][...], float(attributes["mean_square_norm"]))
    source.n_input = int(attributes.get(formats.N_INPUT, source.n_rows))
    for name in {"row", "weight", "categories"} & {*sums}:
        array = open_array(root[name])
        source.hold(array)
        source.beside[name] = checked(array, source.name, name, sums)


def _scaled(source: RowSource, root: Any) -> RowSource:
    """The rows of a converted file as they are scaled: in the file, or here if they are narrow."""
    scaling = Scaling.read(root)
    if source.dtype == FLOAT32 or scaling is None or scaling.is_identity:
        source.scaling = scaling
        return source
    scaled = ScaledSource(source, scaling)
    scaled.statistics = source.statistics
    return scaled


def _find_labels(root: Node, label: str, sums: Sums, *, is_given: bool) -> Sliceable | None:
    """Labels at `label` or ``obs/label``; None if there are none and no other name `is_given`."""
    for place in (label, f"obs/{label}"):
        node = find(root, place)
        if node is not None:
            return labels_in(node, f"{path_of(root)}: {label!r}", sums if place == "y" else {})
    if label == "y" or not is_given:
        return None
    raise InputError(f"{path_of(root)} has no {label!r}; it has {', '.join(_names_of(root))}")


def _names_of(root: Node) -> list[str]:
    """Names of the members, and of the matrices and columns that AnnData has for each row."""
    tables = {kind: find(root, kind) for kind in ("layers", "obsm", "obs")}
    others = {*tables, "obsp", "uns", "var", "varm", "varp"} if is_group(tables["obs"]) else ()
    found = [name for name in root if name not in (*others, "var/_index")]
    for kind, table in tables.items():
        names = table if is_group(table) else ()
        found += [f"{kind}/{name}" for name in names if not name.startswith("_")]
    return found


def labels_in(node: Node, name: str, sums: Sums | None = None) -> Sliceable:
    """Labels in an array or in a column of AnnData; `sums` check those of a converted file."""
    parts = {*node} if is_group(node) else set()
    if {"codes", "categories"} <= parts:
        return coded_labels(open_array(node["codes"]), _whole(node["categories"]), name)
    if {"values", "mask"} <= parts:
        values = _whole(node["values"])
        codes = np.where(_whole(node["mask"]), -1, np.arange(len(values)))
        return coded_labels(codes, values, name)
    array = np.zeros((0, 2)) if parts or hasattr(node, "tocsr") else open_array(node)
    if isinstance(array, np.ndarray):
        array = typed(node if isinstance(node, list | tuple) else array, name)
    dtype = array.dtype
    # In HDF5, objects may also be references.
    is_word = dtype.kind == "O" and (h5py.check_string_dtype(dtype) or not dtype.metadata)
    is_text = dtype.kind in "SUT" or bool(is_word)
    is_column = array.shape[1:] in ((), (1,)) and len(array.shape) > 0
    if not is_column or not (is_text or dtype.kind in "biuf"):
        raise InputError(
            f"{name} must be one number or text for each row, not of shape {array.shape} and type "
            f"{dtype}; name another (--label, or label= in Python)"
        )
    array = checked(array, path_of(node), "y", sums or {})
    if len(array.shape) == 2:
        column = array
        array = ReadArray(column.shape[:1], dtype, lambda start, stop: column[start:stop][:, 0])
    names = formats.get_texts(getattr(node, "attrs", {}), formats.LABEL_NAMES)
    if names is not None:
        return coded_labels(array, np.array(names, dtype=object), name)
    if not is_text or isinstance(array, np.ndarray):
        return array
    texts = ReadArray(array.shape, object, lambda start, stop: typed(array[start:stop], name))
    texts.kept_bytes = array.kept_bytes
    return texts


def _whole(node: Node) -> AnyArray:
    """All values of an array."""
    return np.asarray(open_array(node)[0 : node.shape[0]])


def _names_in(root: Node, table: str) -> list[str] | None:
    """Names of the rows of a table, from the index that its attributes name; None without one."""
    group = find(root, table)
    index = as_text(group.attrs.get("_index", "_index")) if is_group(group) else "_index"
    node = find(root, f"{table}/{index}")
    if is_group(node):
        node = find(node, "values")  # the group also has a mask
    return None if node is None else [as_text(name) for name in _whole(node).tolist()]
