"""Rows, labels and names in the arrays and groups of HDF5 or zarr, which are used as they are.

Rows are an array of two dimensions, or a group with the three arrays of a CSR matrix. Labels are an
array, or in AnnData a column of ``obs``: an array or a group, of codes and the categories that they
stand for, or of values and a mask of the missing ones. Names of columns are the index of ``var``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeAlias

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.data import converted, hdf5, zarrs
from ooc_fw.data.arrays import ReadArray, Sliceable, is_one_column, only_column
from ooc_fw.data.converted import NO_SUMS, Sums, checked, is_converted
from ooc_fw.data.formats import TARGETS, as_text
from ooc_fw.data.labels import are_missing, label_word, typed_words
from ooc_fw.data.rows import AnyArray, check_real, check_shape
from ooc_fw.data.sources import ArraySource, CSRSource, FileStamp, RowSource
from ooc_fw.data.views import SubsetSource, ranges_of
from ooc_fw.system.errors import DamageError, InputError
from ooc_fw.system.files import ZARR_METADATA

Node: TypeAlias = Any  # an array or a group of h5py or zarr, or what `ooc_fw.data.arrays` reads

_CSR_PARTS = {"data": "biuf", "indices": "iu", "indptr": "iu"}  # and the kinds of their types
_PART = 1 << 20  # labels that are looked at together
_OTHER_ROWS = "name its rows (--x-name, or x_name= in Python)"
_OTHER_LABELS = "name another (--label, or label= in Python)"


def is_array(node: Node) -> bool:
    """Whether a node is an array, not a group."""
    return hasattr(node, "shape")


def path_of(node: Node) -> str:
    """The file or store that a node is in."""
    if isinstance(node, h5py.Group | h5py.Dataset):
        return str(node.file.filename)
    if zarrs.is_zarr(node):
        return str(getattr(node.store, "root", getattr(node.store, "path", node.store)))
    return getattr(node, "path", "dask array")


def place_of(node: Node) -> str:
    """File, and path in it, for messages."""
    name = getattr(node, "name", "").removesuffix("/")
    return f"{path_of(node)}: {name!r}" if name else path_of(node)


def find(group: Node, path: str) -> Node | None:
    """Array or group at a path below `group`, or itself for ""; None if there is none."""
    if isinstance(group, h5py.Group):
        found = hdf5.find_node(group, path)
        return found if isinstance(found, h5py.Group | h5py.Dataset) else None
    parts = path.strip("/").split("/")
    if not path:
        return group
    return None if {".", ".."} & {*parts} else group.get("/".join(parts))


def open_array(node: Node) -> Any:
    """What slices of an array are read from; InputError unless its values are there."""
    if isinstance(node, h5py.Dataset):
        return hdf5.open_dataset(node)
    if zarrs.is_zarr(node):
        return zarrs.open_zarr(node, place_of(node))
    return node


def is_text(node: Node) -> bool:
    """Whether the values of an array are words; objects may be references and the like."""
    dtype = np.dtype(node.dtype)
    if dtype.kind == "O":
        return h5py.check_string_dtype(dtype) is not None or not dtype.metadata
    return dtype.kind in "SUT"


def open_container(
    root: Node,
    labels: Sliceable | None = None,
    x_name: str = "X",
    label: str | None = "y",
    missing_labels: str = "refuse",
) -> RowSource:
    """Open the rows `x_name` in a group, or an array; `labels` replace those called `label`."""
    with hdf5.structure_errors(path_of(root)):
        if is_array(root):
            return open_rows(root, labels)
        rows = find_rows(root, x_name)
        sums = converted.read_checksums(root) if is_converted(root) else NO_SUMS
        named = None
        if labels is None and label is not None and rows is not root:
            named = find_labels(root, label, missing_labels, sums)
            labels = None if named is None else named.values
        is_table = x_name == "X"  # what a converted file says is of these rows
        source = open_rows(rows, labels, sums if is_table else NO_SUMS)
        if named is not None and label == "y" and is_converted(root):
            source.targets = bool(root.attrs.get(TARGETS, False))
        if is_table and is_converted(root):
            converted.adopt(source, root, sums)
        if source.columns is None:
            source.columns = feature_names(root, x_name, source.n_features)
        source.label_columns = column_names(root)
        return source if named is None else with_labels_only(source, named.missing)


def find_rows(root: Node, x_name: str) -> Node:
    """The array, or the group of a CSR matrix, that holds the rows; InputError without one."""
    rows = find(root, x_name)
    if rows is None and is_csr(root):
        rows = root
    path = path_of(root)
    if rows is None:
        if hdf5.is_model(root):
            raise InputError(f"{path} is a model; give data here, and see ooc-fw info {path}")
        has = ", ".join(root) or "nothing"
        raise InputError(f"{path} has no {x_name!r} (it has: {has}); {_OTHER_ROWS}")
    if not is_array(rows) and not is_csr(rows):
        raise InputError(
            f"{place_of(rows)} is neither an array nor a group of data, indices, indptr; "
            f"{_OTHER_ROWS}"
        )
    return rows


def is_csr(node: Node) -> bool:
    """Whether a group has the arrays of a CSR matrix."""
    return not is_array(node) and all(find(node, part) is not None for part in _CSR_PARTS)


def open_rows(node: Node, labels: Sliceable | None = None, sums: Sums = NO_SUMS) -> RowSource:
    """Dense rows of an array, or sparse ones of a group; `sums` are checksums to compare with."""
    path = path_of(node)
    source: RowSource
    if is_array(node):
        check_shape(path, node.shape or ())
        check_real(path, np.dtype(node.dtype))
        arrays = [open_array(node)]
        rows = checked(arrays[0], path, "X", sums)
        source = ArraySource(rows, labels, name=path, chunk_rows=arrays[0].chunk_rows)
    else:
        source, arrays = _open_csr(node, labels, sums)
    source.stamps += _stamps(node if is_array(node) else find(node, "data"))
    source.compressed = arrays[0].compressed
    if source.compressed:
        source.max_gap = source.span_rows = source.chunk_rows
    for array in arrays:
        source.hold(array)
    return source


def _stamps(node: Node) -> list[FileStamp]:
    """Files whose change would change the values."""
    if isinstance(node, h5py.Dataset):
        # The file that is open: another one may have its name by now.
        file = node.file
        plain = hdf5.is_plain_file(file)
        return [FileStamp(file.filename, file.id.get_vfd_handle())] if plain else []
    if zarrs.is_zarr(node):  # the values are in too many files, their descriptions are not
        folder = os.path.join(path_of(node), *node.path.split("/"))
        places = [os.path.join(folder, name) for name in ZARR_METADATA]
        return [FileStamp(place) for place in places if os.path.isfile(place)]
    return [FileStamp(node.path)] if hasattr(node, "path") else []


def _open_csr(group: Node, labels: Sliceable | None, sums: Sums) -> tuple[CSRSource, list[Any]]:
    """Source of sparse rows, and the arrays that it reads in parts."""
    path = path_of(group)
    # The encoding of a converted file is text of variable length, which no checksum covers.
    kind = "csr" if sums else as_text(group.attrs.get("encoding-type", "csr"))
    if kind.removesuffix("_matrix") != "csr":
        raise InputError(f"{place_of(group)} is a {kind}; write it by rows (tocsr() in Python)")
    shape = np.ravel(group.attrs.get("shape", ()))
    if len(shape) != 2 or shape.dtype.kind not in "iu" or shape.min() < 0:
        raise InputError(
            f"the attribute 'shape' of {place_of(group)} must be two whole numbers (rows, "
            f"columns), not {shape.tolist()}; correct it"
        )
    n_rows, n_features = shape.tolist()
    nodes = {part: check_vector(find(group, part), kinds) for part, kinds in _CSR_PARTS.items()}
    n_stored, n_columns, n_pointers = (node.shape[0] for node in nodes.values())
    check_shape(path, (n_rows, n_features))
    if n_columns != n_stored or n_pointers != n_rows + 1:
        raise InputError(
            f"{path} has {n_stored} sparse values, {n_columns} column numbers and {n_pointers} row "
            f"pointers for {n_rows} rows; is it stored by columns (CSC)? write it again as CSR"
        )
    arrays = {part: open_array(node) for part, node in nodes.items()}
    parts = {part: checked(array, path, f"X/{part}", sums) for part, array in arrays.items()}
    chunk = arrays["data"].chunk_rows
    chunk_rows = None if chunk is None else max(1, chunk * n_rows // max(1, n_stored))
    matrix = SimpleNamespace(**parts, shape=(n_rows, n_features))
    source = CSRSource(matrix, labels, name=path, chunk_rows=chunk_rows)
    return source, [*arrays.values()]


def check_vector(node: Node | None, kinds: str = "", length: int | None = None) -> Any:
    """The array of one dimension; InputError if it is something else, or of another type."""
    if node is None or not is_array(node) or len(node.shape) != 1:
        place = "a part of the file" if node is None else place_of(node)
        raise InputError(f"{place} must be an array of one dimension; write it again")
    dtype = np.dtype(node.dtype)
    if kinds and dtype.kind not in kinds:
        what = "whole numbers" if kinds == "iu" else "numbers"
        raise InputError(f"{place_of(node)} is of type {dtype}, but must be {what}; convert it")
    if length is not None and node.shape[0] != length:
        raise DamageError(
            f"{place_of(node)} has {node.shape[0]} values, not {length}; write it again"
        )
    return node


@dataclass(frozen=True)
class Labels:
    """Labels of rows, and which of them are missing; None where none is."""

    values: Sliceable
    missing: npt.NDArray[np.bool_] | None = None


def find_labels(root: Node, label: str, missing: str, sums: Sums) -> Labels | None:
    """Labels called `label`, or so in ``obs``; None where there are none and none were named."""
    above, _, name = label.rpartition("/")
    if name == "_index":
        node = find(root, _index_of(root, above))
        return None if node is None else Labels(np.array(names_in(node), dtype=np.str_))
    for place in (label, f"obs/{label}"):
        node = find(root, place)
        if node is not None:
            own = sums if place == "y" else None
            return labels_in(node, f"{path_of(root)}: {label!r}", missing, own)
    if label == "y":
        return None
    has = ", ".join(column_names(root) or root)
    raise InputError(f"{path_of(root)} has no labels {label!r}; it has {has}")


def _index_of(root: Node, table: str) -> str:
    """Path of the names of the rows of a table, whatever they are called."""
    group = find(root, table)
    name = "_index" if group is None else as_text(group.attrs.get("_index", "_index"))
    return f"{table}/{name}"


def column_names(root: Node) -> list[str]:
    """Paths of the columns of ``obs``."""
    obs = find(root, "obs")
    names = () if obs is None or is_array(obs) else obs
    return [f"obs/{name}" for name in names if name != "_index"]


def labels_in(node: Node, what: str, missing: str = "refuse", sums: Sums | None = None) -> Labels:
    """Labels in an array or a column of AnnData, with `sums` if it is the "y" of a file.

    All labels of another column are looked at, to see which are missing.
    """
    labels = _labels_of_parts(node, what)
    if labels is None:
        shape = getattr(node, "shape", None) or ()
        dtype = np.dtype(getattr(node, "dtype", "V"))
        if not is_one_column(shape) or not (dtype.kind in "biuf" or is_text(node)):
            raise InputError(
                f"{what} must be one number or text for each row, not of shape {shape} and type "
                f"{dtype}; {_OTHER_LABELS}"
            )
        array = only_column(checked(open_array(node), path_of(node), "y", sums or NO_SUMS))
        labels = Labels(converted.label_words(array, node, is_text=is_text(node)))
        if sums is None or missing != "refuse":
            labels = missing_in(labels.values)
    check_labelled(labels, what, missing)
    return labels


def check_labelled(labels: Labels, what: str, missing: str) -> None:
    """Raise InputError if some labels are missing, unless these rows are to be left out."""
    if labels.missing is not None and missing == "refuse":
        raise InputError(
            f"{np.count_nonzero(labels.missing)} of {len(labels.missing)} rows have no label in "
            f"{what}; leave them out (convert --missing-labels drop, or missing_labels= in Python)"
        )


def _labels_of_parts(node: Node, what: str) -> Labels | None:
    """Labels that are codes of categories, or values with a mask; None for other columns."""
    parts = set() if is_array(node) else {*node}
    if {"codes", "categories"} <= parts:
        codes = _whole(find(node, "codes"), "iu")
        return coded_labels(codes, _whole(find(node, "categories")), what)
    if not {"values", "mask"} <= parts:
        return None
    found = _whole(find(node, "values"))
    is_missing = _whole(find(node, "mask"), length=len(found)).astype(bool)
    if is_text(find(node, "values")):
        found = typed_words(np.where(is_missing, "", found.astype(object)).tolist())
    return _labels(found, is_missing)


def _whole(node: Node | None, kinds: str = "", length: int | None = None) -> AnyArray:
    """All values of what passes `check_vector`."""
    vector = check_vector(node, kinds, length)
    return np.asarray(open_array(vector)[0 : vector.shape[0]])


def coded_labels(codes: AnyArray, categories: AnyArray, what: str) -> Labels:
    """Labels that codes stand for, -1 for a missing one."""
    n_known = len(categories)
    if len(codes) and not -1 <= int(codes.min()) <= int(codes.max()) < n_known:
        raise InputError(f"{what} has codes that are none of its {n_known} categories")
    if categories.dtype.kind not in "biufSUOT":
        raise InputError(f"{what} are of type {categories.dtype}; {_OTHER_LABELS}")
    words = np.array([*map(label_word, categories.tolist()), ""], dtype=object)
    words[np.setdiff1d(np.arange(n_known), codes)] = ""  # unused ones do not tell the type
    values = typed_words(words.tolist())
    labels = ReadArray(codes.shape, values.dtype, lambda start, stop: values[codes[start:stop]])
    return _labels(labels, (words == "")[codes])


def missing_in(values: Any) -> Labels:
    """Labels, all of which are looked at to see which are missing."""
    parts = [are_missing(values[first : first + _PART]) for first in range(0, len(values), _PART)]
    return _labels(values, np.concatenate([*parts, np.zeros(0, dtype=bool)]))


def _labels(values: Any, missing: AnyArray) -> Labels:
    return Labels(values, missing if missing.any() else None)


def with_labels_only(source: RowSource, missing: npt.NDArray[np.bool_] | None) -> RowSource:
    """The rows that have a label."""
    if missing is None:
        return source
    labelled = SubsetSource(source, ranges_of(np.flatnonzero(~missing)))
    labelled.stamps = source.stamps
    labelled.on_close(source.close)
    return labelled


def feature_names(root: Node, x_name: str, n_features: int) -> list[str] | None:
    """Names of the columns of X, or of a layer, in the ``var`` beside it; None where none are."""
    place = place_of_names(x_name)
    var = None if place is None else find(root, place)
    if var is None or is_array(var):
        return None
    node = find(root, _index_of(root, str(place)))
    names = None if node is None else names_in(node)
    return names if names is not None and len(names) == n_features else None


def names_in(node: Node) -> list[str] | None:
    """Names in the index of a table, as they stand there."""
    parts = set() if is_array(node) else {*node}
    if {"codes", "categories"} <= parts:
        values = _whole(find(node, "categories"))[_whole(find(node, "codes"), "iu")]
    elif is_array(node) or "values" in parts:
        values = _whole(node if is_array(node) else find(node, "values"))
    else:
        return None
    return [as_text(name) for name in values.tolist()]


def place_of_names(x_name: str) -> str | None:
    """Path of the names of the columns of "X" or "layers/...", of the whole or of a part."""
    parts = x_name.strip("/").split("/")
    above = parts[:-1] if parts[-1] == "X" else parts[:-2] if parts[-2:-1] == ["layers"] else None
    return None if above is None else "/".join([*above, "var"])
