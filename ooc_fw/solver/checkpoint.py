"""Checkpoints: the state of a run between two iterations, in one file.

The file is an HDF5 image behind a line of text with its checksum, so that any damage is noticed
before anything is read from it. Arrays are data sets ``<part>/<name>``; all other values, and the
identity of the run, are JSON. The file is written whole or not at all, and reading it runs no code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import time
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeAlias

import h5py
import numpy as np

from ooc_fw.data.rows import CSRRows
from ooc_fw.data.sources import RowSource, iter_blocks
from ooc_fw.data.sources.opening import structure_errors
from ooc_fw.data.sources.storage import check_plain_tree
from ooc_fw.options import TrainOptions
from ooc_fw.problem import BinaryProblem
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import write_atomic

logger = logging.getLogger(__name__)

State: TypeAlias = dict[str, dict[str, Any]]
"""Name of a part -> name of a value -> array, or something that JSON can hold."""

Identity: TypeAlias = dict[str, dict[str, Any]]
"""What a run is: "options", "kernel" and "data", each name -> JSON value."""

FORMAT_VERSION = 4  # changes with what the state holds, and with how a run goes on from it
_FRONT = 512  # bytes before the HDF5 image
_MAGIC = "ooc-fw checkpoint"

_BUDGETS = ("max_iter", "max_time", "threads")
"""Options that may change when a run is resumed: they say when to stop, not where to go."""


@dataclass(frozen=True)
class CheckpointPlan:
    """Where and how often a run writes checkpoints.

    Parameters
    ----------
    path : str or PathLike
        File, replaced each time.
    every_s : float
        Seconds between two checkpoints. One more is written before each certifying pass, and one at
        the end.
    """

    path: str | os.PathLike[str]
    every_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.every_s < float("inf"):
            raise InputError(f"checkpoints must be some seconds apart, not {self.every_s}")


class Checkpoints:
    """Writes the checkpoints of one run.

    Parameters
    ----------
    plan : CheckpointPlan or None
        Where and how often; None writes none.

    Attributes
    ----------
    identity : Identity
        Which run the checkpoints belong to; to be set before the first one.
    """

    def __init__(self, plan: CheckpointPlan | None) -> None:
        self._plan = plan
        self._saved_at = time.perf_counter()
        self._failed = False
        self.identity: Identity = {}

    @property
    def wanted(self) -> bool:
        """Whether there are any to write."""
        return self._plan is not None

    def due(self, last: bool) -> bool:
        """Whether it is time for the next one; it always is in the `last` iteration."""
        if self._plan is None:
            return False
        return last or time.perf_counter() >= self._saved_at + self._plan.every_s

    def save(self, state: State) -> None:
        """Write a checkpoint. The first that cannot be written is a warning, not an error."""
        assert self._plan is not None
        try:
            save_checkpoint(self._plan.path, self.identity, state)
        except (OSError, InputError) as error:
            if not self._failed:
                logger.warning(
                    "the checkpoint %s cannot be written (%s); the run goes on without it",
                    os.fspath(self._plan.path),
                    error.strerror if isinstance(error, OSError) else error,
                )
            self._failed = True
        self._saved_at = time.perf_counter()


def save_checkpoint(path: str | os.PathLike[str], identity: Identity, state: State) -> None:
    """Write a checkpoint, replacing `path` atomically.

    Raises
    ------
    OSError
        When it cannot be written; an older one is then as it was.
    """
    arrays: dict[str, Any] = {}
    values: State = {}
    for part, content in state.items():
        values[part] = {}
        for name, value in content.items():
            if isinstance(value, np.ndarray):
                arrays[f"{part}/{name}"] = value
            else:
                values[part][name] = value
    header = json.dumps({"identity": identity, "state": values}).encode()
    image = BytesIO()
    with h5py.File(image, "w", userblock_size=_FRONT) as file:
        file["header"] = np.frombuffer(header, dtype=np.uint8)
        for name, array in arrays.items():
            file[name] = array
    with image.getbuffer() as data:
        front = f"{_MAGIC} {FORMAT_VERSION} {_checksum(data[_FRONT:])}\n".encode()
        data[: len(front)] = front
        write_atomic(path, data)


def load_checkpoint(path: str | os.PathLike[str]) -> tuple[Identity, State]:
    """Read a checkpoint.

    Raises
    ------
    InputError
        There is no such file, or it is no checkpoint, or is damaged.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise InputError(
            f"the checkpoint {name} cannot be read ({error.strerror}); "
            f"train without --resume to start anew"
        ) from error
    words = data[:_FRONT].partition(b"\n")[0].decode(errors="replace").split(" ")
    if " ".join(words[:-2]) != _MAGIC:
        raise InputError(f"{name} is not a checkpoint; give the file that --checkpoint wrote")
    if words[-2] != str(FORMAT_VERSION):
        raise InputError(
            f"the checkpoint {name} is of format {words[-2]}, and this ooc-fw reads "
            f"{FORMAT_VERSION}; train without --resume to start anew"
        )
    if words[-1] != _checksum(memoryview(data)[_FRONT:]):
        raise InputError(
            f"the checkpoint {name} is damaged (its checksum differs); "
            f"train without --resume to start anew"
        )
    with structure_errors(f"the checkpoint {name}"), h5py.File(BytesIO(data), "r") as file:
        check_plain_tree(file)
        header = json.loads(file["header"][...].tobytes())
        state: State = header["state"]
        for part, group in file.items():
            if isinstance(group, h5py.Group):
                state[part] |= {key: dataset[...] for key, dataset in group.items()}
        return header["identity"], state


def _checksum(data: Any) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# -- which run a state belongs to ----------------------------------------------------------------

_DATA_WORDS = {
    "n_rows": "{} rows",
    "n_features": "{} features",
    "sparse": "sparse rows: {}",
    "shuffled": "marked as shuffled: {}",
    "chunk_rows": "{} rows a chunk",
    "labels": "labels with the checksum {}",
    "penalties": "penalties of rows with the checksum {}",
    "bytes": "a file of {} bytes",
    "modified_ns": "a file last changed at {} ns",
    "rows": "rows with the checksum {}",
}


def run_identity(problem: BinaryProblem, options: TrainOptions) -> Identity:
    """What tells one run from another; see `Identity`."""
    known = dataclasses.asdict(options)
    return {
        "data": _data_identity(problem),
        "kernel": problem.kernel.to_dict(),
        "options": {name: known[name] for name in known if name not in _BUDGETS},
    }


def _data_identity(problem: BinaryProblem) -> dict[str, Any]:
    """What tells one data set from another.

    A file is known by its size and time of change, and rows without a file by their checksum.
    """
    source, labels, penalties = problem.source, problem.labels, problem.penalties
    identity = {
        "n_rows": source.n_rows,
        "n_features": source.n_features,
        "sparse": source.sparse,
        "shuffled": source.shuffled,
        "chunk_rows": source.chunk_rows,
        "labels": _checksum(np.ascontiguousarray(labels)),
    }
    if penalties is not None:
        identity["penalties"] = _checksum(np.ascontiguousarray(penalties))
    if os.path.isfile(source.name):
        status = os.stat(source.name)
        return identity | {"bytes": status.st_size, "modified_ns": status.st_mtime_ns}
    return identity | {"rows": _rows_checksum(source)}


def _rows_checksum(source: RowSource) -> str:
    total = hashlib.blake2b(digest_size=16)
    for _, rows in iter_blocks(source, 0, source.n_rows):
        parts: list[Any] = [rows]
        if isinstance(rows, CSRRows):
            parts = [rows.data, rows.indices, rows.indptr]
        for part in parts:
            total.update(np.ascontiguousarray(part).data)
    return total.hexdigest()


def check_same_run(path: str | os.PathLike[str], before: Identity, now: Identity) -> None:
    """Raise InputError, naming the difference, unless a checkpoint is of the run of now.

    Parameters
    ----------
    path : str or PathLike
        The checkpoint, for the message.
    before, now : Identity
        Of the run that wrote it, and of the run that is to resume from it.
    """
    name = os.fspath(path)
    for kind in ("data", "kernel", "options"):
        old, new = before[kind], now[kind]
        different = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        if not different:
            continue
        if kind == "data":
            word = _DATA_WORDS[different[0]]
            raise InputError(
                f"the checkpoint {name} belongs to other data: "
                f"{word.format(old.get(different[0], 'unknown'))} then, "
                f"{word.format(new.get(different[0], 'unknown'))} now; give the data it was made "
                f"from (copied with their time of change), or train without --resume"
            )
        found = ", ".join(f"{key} {old.get(key)!r} (now {new.get(key)!r})" for key in different)
        raise InputError(
            f"the checkpoint {name} was made with another {kind.removesuffix('s')}: {found}; "
            f"give the same, or train without --resume"
        )
