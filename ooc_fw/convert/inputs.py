"""Which inputs there are: their format, their readers, and the training file they shall be like."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import h5py

from ooc_fw.convert.arrays import ArrayReader
from ooc_fw.convert.arrow import CSVReader, PartsReader
from ooc_fw.convert.readers import Reader, TableReader
from ooc_fw.convert.tables import TableRecord
from ooc_fw.convert.text import STANDARD_INPUT, TextInput
from ooc_fw.data.containers import feature_names
from ooc_fw.data.converted import CONTENT, content_crc32, read_checksums
from ooc_fw.data.formats import TABLES, detect_format, open_bytes
from ooc_fw.data.hdf5 import (
    H5PY_ERRORS,
    HDF5Group,
    check_plain_tree,
    find_node,
    is_model,
    open_file,
)
from ooc_fw.data.names import COLUMNS, LABEL_NAMES, RECORD, TARGETS, get_texts
from ooc_fw.data.scaling import Scaling
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import DamageError, InputError, unreadable


@dataclass(frozen=True)
class TrainingFile:
    """What the conversion of a test file takes from its training file, or from a model."""

    name: str  # the file, for messages
    n_features: int  # its width
    sparse: bool  # whether its rows are sparse
    scaling: Scaling  # what was done to its values
    classes: tuple[Any, ...] | None = None  # its labels; None where they are unknown
    columns: Sequence[str] | None = None  # names of its features
    record: TableRecord | None = None  # how a table became its features
    targets: bool = False  # whether its labels are targets of a regression
    is_model: bool = False  # whether it is a model

    @property
    def words(self) -> tuple[str, ...]:
        """Labels that are words."""
        return tuple(name for name in self.classes or () if isinstance(name, str))


def read_like(path: str) -> TrainingFile:
    """Read a converted file, an HDF5 file with rows, or a model; InputError if it is damaged."""
    if not os.path.exists(path):
        raise InputError(f"{path} does not exist; --like takes a converted file")
    strange = InputError(
        f"{path} is not a converted file or a model, or is damaged; --like takes what ooc-fw "
        f"convert and train make"
    )
    try:
        opened = open_file(path)
    except DamageError:
        raise strange from None
    try:
        with opened as file:
            return _read_model(file) if is_model(file) else _read_data(file)
    except InputError:
        raise
    except H5PY_ERRORS as error:
        raise unreadable(path, error) or strange from None


def _read_data(file: h5py.File) -> TrainingFile:
    path = file.filename
    if "format_version" in file.attrs and file.attrs.get("complete") != 1:
        raise InputError(f"{path} is an unfinished conversion; convert it again")
    rows, labels = find_node(file, "X"), find_node(file, "y")
    if rows is None:
        raise InputError(f"{path} has no /X; --like takes a file made by ooc-fw convert")
    read_checksums(file)  # they also cover scaling and width
    names = None if labels is None else get_texts(labels.attrs, LABEL_NAMES)
    if names is None:
        names = file.attrs.get("class_names")
    record = TableRecord.read(file.attrs, path)
    targets = bool(file.attrs.get(TARGETS, False))
    known: dict[str, Any] = {"record": record, "targets": targets}
    known["columns"] = get_texts(file.attrs, COLUMNS)
    names = None if targets else names
    return _training_file(file, rows, Scaling.read(file) or Scaling(), names, **known)


def _read_model(file: h5py.File) -> TrainingFile:
    name = file.filename
    try:
        check_plain_tree(file)
    except InputError as error:
        raise InputError(f"{name} is not a usable model file: {error}") from None
    if CONTENT in file.attrs and content_crc32(file) != int(file.attrs[CONTENT]):
        raise InputError(f"{name} is damaged: it does not match its checksum; restore a copy")
    scaling = Scaling.read(file)
    if scaling is None:
        raise InputError(
            f"{name} is a model that does not know how its training data were scaled; give the "
            f"converted training file with --like"
        )
    names, record = file.attrs["class_names"], None
    if RECORD in file:
        text = file[RECORD][...].tobytes().decode("utf-8")
        record = TableRecord.from_json(text, name, get_texts(file, COLUMNS))
    targets = "spread" in file.attrs
    known: dict[str, Any] = {"record": record, "is_model": True, "targets": targets}
    known["columns"] = get_texts(file, COLUMNS)
    names = None if targets else names
    return _training_file(file, file["support_vectors"], scaling, names, **known)


def _training_file(
    file: h5py.File, rows: Any, scaling: Scaling, names: Any, **known: Any
) -> TrainingFile:
    """What a file says; `names` are its labels as stored, numbers or words."""
    sparse = isinstance(rows, h5py.Group)
    n_features = int((rows.attrs["shape"] if sparse else rows.shape)[1])
    if known["columns"] is None:
        known["columns"] = feature_names(HDF5Group(file), "X", n_features)
    record = known["record"]
    if record is not None and len(record.features) != n_features:
        raise DamageError(
            f"{file.filename} is damaged: the columns of its table make {len(record.features)} "
            f"features, and it has {n_features}; restore a copy or write it again"
        )
    classes = None
    if names is not None:
        texts = (name.decode("utf-8") if isinstance(name, bytes) else name for name in names)
        classes = tuple(name if isinstance(name, str) else float(name) for name in texts)
    return TrainingFile(file.filename, n_features, sparse, scaling, classes, **known)


def choose_format(names: Sequence[str], options: ConvertOptions, like: TrainingFile | None) -> str:
    """Format that all inputs have; InputError if there is none, or options are for another one."""
    if not names:
        raise InputError("no input given; name a file, or - for standard input")
    if names.count(STANDARD_INPUT) > 1:
        raise InputError("standard input (-) can be read only once; give - once")
    is_table = options.for_tables or (like is not None and like.record is not None)
    kinds = [options.format] * len(names)
    if options.format == "auto":
        kinds = [detect_format(name, is_table=is_table) for name in names]
    kind = kinds[0]
    if len(set(kinds)) > 1:
        found = ", ".join(f"{name}: {kind}" for name, kind in zip(names, kinds, strict=True))
        raise InputError(f"the inputs are of several formats ({found}); convert one at a time")
    if kind == "libsvm" and (options.for_tables or options.labels is not None):
        raise InputError(
            "--label, --one-hot, --drop, --impute, --missing-labels, --header, --labels, "
            "--no-header and --delimiter are for tables, and this is LIBSVM text; leave them out, "
            "or name the --format"
        )
    if kind != "libsvm" and (options.zero_based or options.n_features is not None):
        raise InputError(
            "--zero-based and --n-features are for LIBSVM text; leave them out, or name --format"
        )
    if options.labels is not None and len(names) > 1:
        raise InputError("--labels is for one input; convert them one at a time")
    if kind in TABLES and like is not None and like.is_model and not like.record:
        raise InputError(
            f"{like.name} is a model, which does not say how the columns of a table became its "
            f"features; give the converted training file with --like"
        )
    return kind


def open_input(path: str, kind: str, options: ConvertOptions) -> Reader:
    """Open an input of a known format; InputError if it, or a package for it, is missing."""
    return TextInput(path) if kind == "libsvm" else open_table(path, kind, options)


def open_table(path: str, kind: str, options: ConvertOptions) -> TableReader:
    """Open a table of a known format; InputError if it, or a package for it, is missing."""
    if kind == "csv":
        return CSVReader(path, options)
    if path == STANDARD_INPUT:
        raise InputError(f"{kind} cannot be read from standard input; name a file")
    if options.labels is not None and kind in ("parquet", "arrow"):
        raise InputError(f"{path} has named columns: name the one of the labels with --label")
    if kind in ("parquet", "arrow"):
        return PartsReader(path, kind)
    if kind != "zarr":
        open_bytes(path).close()
    return ArrayReader(path, kind, options)
