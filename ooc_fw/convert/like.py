"""What the conversion of a test file takes from its training file, or from a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py

from ooc_fw.convert.record import TableRecord
from ooc_fw.data.attributes import LABEL_NAMES, get_texts
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources.checksums import CONTENT, content_crc32, read_checksums
from ooc_fw.data.sources.opening import H5PY_ERRORS, find_node, open_file
from ooc_fw.data.sources.storage import check_plain_tree
from ooc_fw.system.errors import DamageError, InputError


@dataclass(frozen=True)
class TrainingFile:
    """What is known of a training file."""

    name: str  # the file, for messages
    n_features: int  # its width
    sparse: bool  # whether its rows are sparse
    scaling: Scaling  # what was done to its values
    classes: tuple[Any, ...] | None = None  # its labels; None where they are unknown
    record: TableRecord | None = None  # how a table became its features
    is_model: bool = False  # whether it is a model, which does not know about tables

    @property
    def words(self) -> tuple[str, ...]:
        """Labels that are words."""
        return tuple(name for name in self.classes or () if isinstance(name, str))


def read_like(path: Path) -> TrainingFile:
    """Read a converted file, an HDF5 file with rows, or a model; InputError if it is damaged."""
    if not path.exists():
        raise InputError(f"{path} does not exist; --like takes a converted file")
    strange = InputError(f"{path} is not a converted file; --like takes one made by ooc-fw convert")
    try:
        opened = open_file(str(path))
    except DamageError:
        raise strange from None
    try:
        with opened as file:
            if "support_vectors" in set(file) and "kernel" in file.attrs:
                check_plain_tree(file)
                return _read_model(file)
            if "format_version" in file.attrs and file.attrs.get("complete") != 1:
                raise InputError(f"{path} is an unfinished conversion; convert it again")
            rows, labels = find_node(file, "X"), find_node(file, "y")
            if rows is None:
                raise InputError(f"{path} has no /X; --like takes a file made by ooc-fw convert")
            read_checksums(file)  # they also cover scaling and width
            words = None if labels is None else get_texts(labels.attrs, LABEL_NAMES)
            return TrainingFile(
                str(path),
                *_width_and_kind(rows),
                Scaling.read(file) or Scaling(),
                _class_names(file.attrs.get("class_names") if words is None else words),
                TableRecord.read(file.attrs),
            )
    except InputError:
        raise
    except H5PY_ERRORS:
        raise strange from None


def _read_model(file: h5py.File) -> TrainingFile:
    name = file.filename
    if CONTENT in file.attrs and content_crc32(file) != int(file.attrs[CONTENT]):
        raise InputError(f"{name} is damaged: it does not match its checksum; restore a copy")
    scaling = Scaling.read(file)
    if scaling is None:
        raise InputError(
            f"{name} is a model that does not know how its training data were scaled; give the "
            f"converted training file with --like"
        )
    classes = _class_names(file.attrs["class_names"])
    shape = _width_and_kind(file["support_vectors"])
    return TrainingFile(name, *shape, scaling, classes, is_model=True)


def _width_and_kind(rows: Any) -> tuple[int, bool]:
    """Number of columns, and whether rows are sparse."""
    sparse = isinstance(rows, h5py.Group)
    return int((rows.attrs["shape"] if sparse else rows.shape)[1]), sparse


def _class_names(names: Any) -> tuple[Any, ...] | None:
    """Label values as stored: numbers, or words."""
    if names is None:
        return None
    texts = (name.decode("utf-8") if isinstance(name, bytes) else name for name in names)
    return tuple(name if isinstance(name, str) else float(name) for name in texts)
