"""What the conversion of a test file takes from its training file (``--like``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import h5py

from ooc_fw.data import formats
from ooc_fw.data.converted import LABELS_AS
from ooc_fw.data.hdf5 import open_file, structure_errors
from ooc_fw.data.opening import open_source
from ooc_fw.data.scaling import Scaling
from ooc_fw.system.errors import InputError


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
    labels_as: str | None = None  # map that made its labels

    @property
    def words(self) -> tuple[str, ...]:
        """Labels that are words."""
        return tuple(name for name in self.classes or () if isinstance(name, str))


def read_like(path: str) -> TrainingFile:
    """Read a converted file, or another HDF5 file with rows; InputError if it is damaged."""
    if not (os.path.isfile(path) and formats.is_hdf5(path)):
        raise InputError(
            f"{path} does not exist, is damaged, or is neither a converted file nor a model; "
            f"--like takes what ooc-fw convert and train make"
        )
    with structure_errors(path), open_file(path) as file:
        labels = file.get("y")
        attributes = labels.attrs if isinstance(labels, h5py.Dataset) else {}
        maps = formats.get_texts(attributes, LABELS_AS) or (None,)
        names: Any = formats.get_texts(attributes, formats.LABEL_NAMES)
        if names is None and "class_names" in file.attrs:
            names = file.attrs["class_names"].tolist()
    with open_source(path) as source:
        return TrainingFile(
            path,
            source.n_features,
            source.sparse,
            source.scaling or Scaling(),
            None if names is None or source.targets else tuple(names),
            source.columns,
            source.table,
            bool(source.targets),
            maps[0],
        )
