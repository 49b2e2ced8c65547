"""What the conversion of a test file takes from its training file, or from a model (``--like``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from ooc_fw.data import formats
from ooc_fw.data.converted import LABELS_AS
from ooc_fw.data.hdf5 import open_file, structure_errors
from ooc_fw.data.labels import iter_labels
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
    with open_source(path) as source:
        classes = None
        if source.has_labels and not source.targets and source.scaling is not None:
            labels = {
                label for _, part in iter_labels(source) for label in np.unique(part).tolist()
            }
            classes = tuple(sorted(labels))
        return TrainingFile(
            path,
            source.n_features,
            source.sparse,
            source.scaling or Scaling(),
            classes,
            source.columns,
            source.table,
            bool(source.targets),
            _map_of(path),
        )


def _map_of(path: str) -> str | None:
    with structure_errors(path), open_file(path) as file:
        labels = file.get("y")
        found = (
            formats.get_texts(labels.attrs, LABELS_AS) if isinstance(labels, h5py.Dataset) else []
        )
        return found[0] if found else None
