"""Rows, labels and names in the arrays and groups of a file, whichever format it has.

Rows are an array of two dimensions, or a group with the three arrays of a CSR matrix. Labels are an
array, or in AnnData a column of ``obs``: an array or a group, of codes and the categories that they
stand for, or of values and a mask of the missing ones. Before version 0.8 an array of codes refers
to its categories by an attribute. Names of columns are the index of ``var``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, TypeAlias

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.data import converted
from ooc_fw.data.arrays import (
    ArrayNode,
    DecodedChunks,
    Group,
    Node,
    ReadArray,
    Sliceable,
    check_vector,
    is_one_column,
    only_column,
)
from ooc_fw.data.converted import NO_SUMS, Checksums, checked, is_converted
from ooc_fw.data.formats import TARGETS, as_text, get_texts
from ooc_fw.data.hdf5 import check_no_model, structure_errors
from ooc_fw.data.labels import (
    WordLabels,
    are_missing,
    as_labels,
    is_label_number,
    label_word,
)
from ooc_fw.data.rows import AnyArray, check_real, check_shape
from ooc_fw.data.sources import ArraySource, CSRSource, FileStamp, RowSource, row_pointers
from ooc_fw.data.views import SubsetSource, ranges_of
from ooc_fw.system.errors import InputError

logger = logging.getLogger(__name__)

Missing: TypeAlias = str  # "refuse", "drop" or "drop=LABEL"
"""Whether a row without a label is an error, or left out."""

Sums: TypeAlias = Mapping[str, Checksums]  # of the arrays of a file, by name

Column: TypeAlias = Node | dict[str, Any]
"""A column of ``obs``: an array, or by name the two arrays that it is made of."""

_CSR_PARTS = {"data": "biuf", "indices": "iu", "indptr": "iu"}  # and the kinds of their types
_COLUMN_PARTS = (("codes", "categories"), ("values", "mask"))
_MANY_CHUNKS = 2000  # which take about a second, however small they are
_SMALL_CHUNK = 16 << 10  # bytes that take less time than finding them
_PART = 1 << 20  # codes or marks that are read together
_OTHER_ROWS = "name its rows (--x-name, or x_name= in Python)"
_OTHER_LABELS = "name another (--label, or label= in Python)"


def open_container(
    root: Node,
    labels: Sliceable | None = None,
    x_name: str = "X",
    label: str | None = "y",
    missing_labels: Missing = "refuse",
) -> RowSource:
    """Open the rows `x_name` in a group, or an array; `labels` replace those called `label`."""
    with structure_errors(root.path):
        rows = find_rows(root, x_name)
        _warn_of_chunks(rows)
        sums = converted.read_checksums(root.stored) if is_converted(root) else NO_SUMS
        named = None
        if labels is None and label is not None and isinstance(root, Group) and rows is not root:
            named = find_labels(root, label, missing_labels, sums)
            labels = None if named is None else named.values
        is_table = x_name == "X"  # what a converted file says is of these rows
        source = open_rows(rows, labels, sums if is_table else NO_SUMS)
        if named is not None:
            source.labels_as = _recorded_maps(root, label)
            if label == "y" and is_converted(root):
                source.targets = bool(root.attrs.get(TARGETS, False))
        if is_table and is_converted(root):
            converted.adopt(source, root, sums)
        if isinstance(root, Group):
            if source.columns is None:
                source.columns = feature_names(root, x_name, source.n_features)
            if known := column_names(root):
                source.label_columns = known
                source.labels_hint = (
                    f"name its labels (--label, or label= in Python): it has {', '.join(known)}"
                )
        source.check_unchanged()  # all arrays were found in one and the same file
        return source if named is None else with_labels_only(source, named.missing)


def find_rows(root: Node, x_name: str) -> Any:
    """The array, or the group of a CSR matrix, that holds the rows; InputError without one."""
    if not isinstance(root, Group):
        return root
    rows: Any = root.get(x_name)
    if rows is None and is_csr(root):
        rows = root
    if rows is None:
        check_no_model(root)
        if x_name in {*root}:
            raise InputError(f"{root.path}: the link {x_name!r} leads to nothing; {_OTHER_ROWS}")
        has = ", ".join(root) or "nothing"
        raise InputError(f"{root.path} has no {x_name!r} (it has: {has}); {_OTHER_ROWS}")
    if not isinstance(rows, ArrayNode) and not is_csr(rows):
        raise InputError(
            f"{rows.place} is neither an array nor a group of data, indices, indptr; {_OTHER_ROWS}"
        )
    parts: list[Any] = [rows] if isinstance(rows, ArrayNode) else [*map(rows.get, _CSR_PARTS)]
    for part in parts:
        part.check_written(refuse_end=True)
    return rows


def _warn_of_chunks(rows: Any) -> None:
    """Warn of so many small chunks that a pass takes longer for them than for their values."""
    values = rows if isinstance(rows, ArrayNode) else rows.get("data")
    n_bytes = math.prod(values.shape) * values.dtype.itemsize
    if values.n_chunks > _MANY_CHUNKS and n_bytes < _SMALL_CHUNK * values.n_chunks:
        logger.warning(
            "%s is in %d chunks of %d bytes, and each is read by itself; a conversion (ooc-fw "
            "convert) reads them once, and is faster from the second pass on",
            *(rows.place, values.n_chunks, n_bytes // values.n_chunks),
        )


def is_csr(node: Node) -> bool:
    """Whether a group has the arrays of a CSR matrix."""
    return isinstance(node, Group) and None not in map(node.get, _CSR_PARTS)


def open_rows(node: Any, labels: Sliceable | None = None, sums: Sums = NO_SUMS) -> RowSource:
    """Dense rows of an array, or sparse ones of a group; `sums` are checksums to compare with."""
    source: RowSource
    if isinstance(node, ArrayNode):
        check_shape(node.path, node.shape)
        check_real(node.path, node.dtype)
        values, arrays = node, [node.open()]
        rows = checked(arrays[0], node, "X", sums)
        source = ArraySource(rows, labels, name=node.path, chunk_rows=node.chunk_rows)
    else:
        source, values, arrays = _open_csr(node, labels, sums)
    source.stamps += [FileStamp(*file) for file in values.files().items()]
    if values.compressed:
        source.max_gap = source.span_rows = source.chunk_rows
    # A span of rows as stored.
    source.overhead_bytes += source.read_bytes * -(-int(values.dtype.itemsize) // 4)
    if all(isinstance(array, DecodedChunks) for array in arrays):  # otherwise reads are counted
        source.decoders = arrays
    for array in arrays:
        source.hold(array)
    return source


def _open_csr(
    group: Group, labels: Sliceable | None, sums: Sums
) -> tuple[RowSource, ArrayNode, list[Any]]:
    """Source of sparse rows, the node of their values, and the arrays that it reads in parts."""
    # The encoding of a converted file is text of variable length, which no checksum covers.
    shape = _csr_shape(group, known=bool(sums))
    nodes = {part: check_vector(group.get(part), kinds) for part, kinds in _CSR_PARTS.items()}
    n_stored, n_columns, n_pointers = (node.shape[0] for node in nodes.values())
    check_shape(group.path, shape)
    if n_columns != n_stored or n_pointers != shape[0] + 1:
        raise InputError(
            f"{group.path} has {n_stored} sparse values, {n_columns} column numbers and "
            f"{n_pointers} row pointers for {shape[0]} rows; is it stored by columns (CSC)? write "
            f"it again as CSR"
        )
    arrays = {part: node.open() for part, node in nodes.items()}
    parts = {part: checked(array, nodes[part], f"X/{part}", sums) for part, array in arrays.items()}
    parts["indptr"] = row_pointers(parts["indptr"], n_stored, nodes["indptr"].place)
    data = nodes["data"]
    chunk_rows = data.chunk_rows and max(1, data.chunk_rows * shape[0] // max(1, n_stored))
    matrix = SimpleNamespace(**parts, shape=shape)
    source = CSRSource(matrix, labels, name=group.path, chunk_rows=chunk_rows)
    source.overhead_bytes += 8 * (shape[0] + 1)  # row pointers
    return source, data, [arrays["data"], arrays["indices"]]


def _csr_shape(group: Group, *, known: bool) -> tuple[int, int]:
    """Shape of a CSR group, which its three arrays alone do not tell; InputError if it is no CSR.

    The attribute of the kind is not read if it is `known`.
    """
    kind = "csr" if known else as_text(group.attrs.get("encoding-type", "csr"))
    if kind.removesuffix("_matrix") != "csr":
        raise InputError(f"{group.place} is a {kind}; write it by rows (tocsr() in Python)")
    shape = np.ravel(group.attrs.get("shape", ()))
    if len(shape) != 2 or shape.dtype.kind not in "iu" or shape.min() < 0:
        raise InputError(
            f"the attribute 'shape' of {group.place} must be two whole numbers (rows, columns), "
            f"not {shape.tolist()}; correct it"
        )
    return int(shape[0]), int(shape[1])


@dataclass(frozen=True)
class Labels:
    """Labels of rows, and which of them are missing; None where none is."""

    values: Sliceable
    missing: npt.NDArray[np.bool_] | None = None


def find_labels(root: Group, label: str, missing: Missing, sums: Sums) -> Labels | None:
    """Labels called `label`, or so in ``obs``; None where there are none and none were named."""
    column = find_column(root, label)
    if column is not None and label.rpartition("/")[2] == "_index":
        return Labels(names_in(column))
    if column is not None:
        what = f"{root.path}: {label!r}"
        own = label == "y" and root.get("y") is not None  # and not a column of obs
        return labels_in(column, what, missing, sums if own else None)
    if label == "y":
        return None
    has = ", ".join(column_names(root) or root)
    raise InputError(f"{root.path} has no labels {label!r}; it has {has}")


def _recorded_maps(root: Node, label: str | None) -> tuple[str, ...]:
    """Maps that made the labels of a converted file, if `label` names these."""
    own = root.get("y") if label == "y" and isinstance(root, Group) else None
    attributes: Any = own.attrs if isinstance(own, ArrayNode) else {}
    return tuple(get_texts(attributes, converted.LABELS_AS) or ())


def find_column(root: Group, path: str) -> Column | None:
    """Column at a path below `root` or its ``obs``; a group that is none is returned as it is.

    The path ".../_index" is that of the names of the rows of a table, whatever they are called.
    """
    above, _, name = path.rpartition("/")
    if name == "_index" and isinstance(table := root.get(above), Group):
        path = f"{above}/{as_text(table.attrs.get('_index', '_index'))}"
    for place in (path, f"obs/{path}"):
        node = root.get(place)
        if isinstance(node, Group):
            for parts in _COLUMN_PARTS:
                if {*parts} <= {*node}:
                    return {part: node.get(part) for part in parts}
        elif isinstance(node, ArrayNode):
            known = node.attrs.get("categories")
            table = root.get(place.rstrip("/").rpartition("/")[0])
            if isinstance(known, str | bytes | h5py.Reference) and isinstance(table, Group):
                return {"codes": node, "categories": table.get(known)}
        if node is not None:
            return node
    return None


def column_names(root: Group) -> list[str]:
    """Paths of the columns of ``obs``."""
    obs = root.get("obs")
    names = obs if isinstance(obs, Group) else ()
    return [f"obs/{name}" for name in names if name not in ("_index", "__categories")]


def labels_in(
    column: Column, what: str, missing: Missing = "refuse", sums: Sums | None = None
) -> Labels:
    """Labels in a column, of which ``sums`` are the checksums if it is the "y" of a file.

    All labels of another column are looked at, to see which are missing.
    """
    if isinstance(column, dict):
        labels = _coded_labels(column, what) if "codes" in column else _masked_labels(column)
    elif not (isinstance(column, ArrayNode) and is_one_column(column.shape)):
        raise InputError(f"{what} must be an array of one dimension; {_OTHER_LABELS}")
    elif column.dtype.kind not in "biuf" and not column.is_text:
        raise InputError(
            f"{what} are of type {column.dtype}, but must be numbers or text; {_OTHER_LABELS}"
        )
    else:
        column.check_written()
        array = only_column(checked(column.open(), column, "y", sums or NO_SUMS))
        labels = Labels(converted.label_words(array, column))
        if sums is None or missing != "refuse":
            labels = missing_in(labels.values)
    if labels.missing is not None and missing == "refuse":
        raise InputError(
            f"{np.count_nonzero(labels.missing)} of {len(labels.missing)} rows have no label in "
            f"{what}; leave them out (convert --missing-labels drop, or missing_labels= in Python)"
        )
    return labels


def _coded_labels(column: Mapping[str, Any], what: str) -> Labels:
    codes, categories = check_vector(column["codes"], "iu"), check_vector(column["categories"])
    codes.check_written()
    if categories.dtype.kind not in "biuf" and not categories.is_text:
        raise InputError(f"{what} are of type {categories.dtype}; {_OTHER_LABELS}")
    values, places = np.asarray(categories.open()[0 : categories.shape[0]]), codes.open()
    words = [label_word(value) for value in values.tolist()]
    is_used = np.zeros(len(words) + 1, dtype=bool)
    has_no_label = np.array([not word for word in (*words, "")], dtype=bool)

    def is_missing(start: int, stop: int) -> npt.NDArray[np.bool_]:
        part = places[start:stop]
        if len(part) and not -1 <= int(part.min()) <= int(part.max()) < len(words):
            raise InputError(f"{what} has codes that are none of its {len(words)} categories")
        is_used[part] = True
        return np.asarray(has_no_label[part])

    labels = _with_missing(codes, is_missing)
    if categories.is_text:
        used = [word for word, used in zip(words, is_used.tolist(), strict=False) if word and used]
        values = as_labels(words, are_numbers=bool(used) and all(map(is_label_number, used)))
    read = ReadArray(codes.shape, values.dtype, lambda start, stop: values[places[start:stop]])
    return replace(labels, values=read)


def _masked_labels(column: Mapping[str, Any]) -> Labels:
    values = check_vector(column["values"])
    mask = check_vector(column["mask"], length=values.shape[0])
    values.check_written()
    array, marks = values.open(), mask.open()
    if not values.is_text:
        return _with_missing(array, lambda start, stop: np.asarray(marks[start:stop], bool))

    def read(start: int, stop: int) -> AnyArray:
        words: AnyArray = np.asarray(array[start:stop]).astype(object)
        words[np.asarray(marks[start:stop], bool)] = None
        return words

    return missing_in(WordLabels(ReadArray(values.shape, object, read)))


def missing_in(values: Any) -> Labels:
    """Labels, all of which are looked at to see which are missing."""
    return _with_missing(values, lambda start, stop: are_missing(values[start:stop]))


def _with_missing(values: Any, is_missing: Any) -> Labels:
    """Labels of which ``is_missing(start, stop)`` are missing."""
    n_rows = values.shape[0]
    parts = [is_missing(start, min(n_rows, start + _PART)) for start in range(0, n_rows, _PART)]
    missing = np.concatenate([*parts, np.zeros(0, dtype=bool)])
    return Labels(values, missing if missing.any() else None)


def with_labels_only(source: RowSource, missing: npt.NDArray[np.bool_] | None) -> RowSource:
    """The rows that have a label."""
    if missing is None:
        return source
    labelled = SubsetSource(source, ranges_of(np.flatnonzero(~missing)))
    labelled.stamps = source.stamps
    labelled.on_close(source.close)
    return labelled


def feature_names(root: Group, x_name: str, n_features: int) -> list[str] | None:
    """Names of the columns of X, or of a layer, in the ``var`` beside it; None where none are."""
    place = place_of_names(x_name)
    var = None if place is None else root.get(place)
    if not isinstance(var, Group):
        return None
    column = find_column(root, f"{place}/_index")
    if not isinstance(column, ArrayNode | dict):
        return None
    values = names_in(column)
    return values[0:n_features].tolist() if len(values) == n_features else None


def names_in(column: Any) -> ReadArray:
    """Names in the index of a table, as they stand there."""
    known = None
    if isinstance(column, dict) and "codes" in column:
        categories = check_vector(column["categories"]).open()
        known = np.asarray(categories[0 : len(categories)])
        column = column["codes"]
    elif isinstance(column, dict):
        column = column["values"]
    places = check_vector(column).open()

    def read(start: int, stop: int) -> AnyArray:
        names = np.asarray(places[start:stop] if known is None else known[places[start:stop]])
        return np.array([as_text(name) for name in names.tolist()], dtype=np.str_)

    return ReadArray((len(places),), object, read)


def place_of_names(x_name: str) -> str | None:
    """Path of the names of the columns of "X" or "layers/...", of the whole or of a part."""
    parts = x_name.strip("/").split("/")
    above = parts[:-1] if parts[-1] == "X" else parts[:-2] if parts[-2:-1] == ["layers"] else None
    return None if above is None else "/".join([*above, "var"])
