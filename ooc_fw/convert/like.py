"""What the conversion of a test file takes from its training file, or from a model (``--like``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import h5py

from ooc_fw.data import formats, hdf5
from ooc_fw.data.converted import CONTENT, LABELS_AS, content_crc32
from ooc_fw.data.opening import open_source
from ooc_fw.data.scaling import Scaling
from ooc_fw.system.errors import DamageError, InputError


@dataclass(frozen=True)
class TrainingFile:
    """What is known of training rows."""

    name: str  # the file, for messages
    n_features: int  # its width
    sparse: bool  # whether its rows are sparse
    scaling: Scaling  # what was done to its values
    classes: tuple[Any, ...] | None = None  # its labels; None where they are unknown
    columns: Sequence[str] | None = None  # names of its features
    table: str | None = None  # how a table became its features, as JSON
    targets: bool = False  # whether its labels are targets of a regression
    labels_as: tuple[str, ...] = ()  # maps that made its labels

    @property
    def words(self) -> tuple[str, ...]:
        """Labels that are words."""
        return tuple(name for name in self.classes or () if isinstance(name, str))


def read_like(path: str) -> TrainingFile:
    """Read a converted file, an HDF5 file with rows, or a model; InputError if it is damaged."""
    if not (os.path.isfile(path) and formats.is_hdf5(path)):
        raise InputError(
            f"{path} does not exist, is damaged, or is neither a converted file nor a model; "
            f"--like takes what ooc-fw convert and train make"
        )
    with hdf5.structure_errors(path), hdf5.open_file(path) as file:
        if hdf5.is_model(file):
            return _of_model(file)
        names = file.attrs.get("class_names")
        if isinstance(file.get("y"), h5py.Dataset):
            names = file["y"].attrs.get(formats.LABEL_NAMES, names)
    with open_source(path) as source:
        return TrainingFile(
            path,
            source.n_features,
            source.sparse,
            source.scaling or Scaling(),
            None if source.targets else _classes(names),
            source.columns,
            source.table,
            bool(source.targets),
            labels_as=source.labels_as,
        )


def _of_model(file: Any) -> TrainingFile:
    path = file.filename
    try:
        hdf5.check_plain_tree(file)
    except InputError as error:
        raise DamageError(f"{path} is no model of ooc-fw: {error}; restore a copy") from None
    if CONTENT in file.attrs and content_crc32(file) != int(file.attrs[CONTENT]):
        raise InputError(f"{path} is damaged: it does not match its checksum; restore a copy")
    scaling = Scaling.read(file)
    if scaling is None:
        raise InputError(
            f"{path} is a model that does not know how its training data were scaled; give the "
            f"converted training file with --like"
        )
    rows = file["support_vectors"]
    sparse = "shape" in rows.attrs
    return TrainingFile(
        path,
        int((rows.attrs["shape"] if sparse else rows.shape)[1]),
        sparse,
        scaling,
        None if "spread" in file.attrs else _classes(file.attrs.get("class_names")),
        formats.get_texts(file, formats.COLUMNS),
        file[formats.RECORD][...].tobytes().decode() if formats.RECORD in file else None,
        "spread" in file.attrs,
        labels_as=tuple(formats.get_texts(file, LABELS_AS) or ()),
    )


def _classes(names: Any) -> tuple[Any, ...] | None:
    """Labels that a file names, words or numbers."""
    if names is None:
        return None
    return tuple(formats.as_text(x) if isinstance(x, bytes | str) else float(x) for x in names)
