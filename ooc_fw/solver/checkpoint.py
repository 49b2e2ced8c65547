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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeAlias

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.data.formats import CHECKPOINT
from ooc_fw.data.hdf5 import check_plain_tree, structure_errors
from ooc_fw.data.rows import CSRRows
from ooc_fw.data.sources import RowSource, iter_blocks
from ooc_fw.options import TrainOptions
from ooc_fw.problem import Problem
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import write_atomic

logger = logging.getLogger(__name__)

State: TypeAlias = dict[str, dict[str, Any]]
"""Name of a part -> name of a value -> array, or something that JSON can hold."""

Identity: TypeAlias = dict[str, dict[str, Any]]
"""What a run is: "options", "kernel" and "data", each name -> JSON value."""

FORMAT_VERSION = 5  # changes with what the state holds, and with how a run goes on from it
_FRONT = 512  # bytes before the HDF5 image
_MAGIC = CHECKPOINT.decode()
_ANEW = "train without --resume to start anew"

_BUDGETS = ("max_iter", "max_time", "threads", "exact")
"""Options that may change when a run is resumed: they say when to stop, not where to go.

`exact` is decided before: a run that is resumed is exact.
"""


@dataclass(frozen=True)
class CheckpointPlan:
    """Where a run writes checkpoints, and how many seconds lie between two of them.

    One more is written before each certifying pass, and one at the end. The file is replaced each
    time.
    """

    path: str | os.PathLike[str]
    every_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.every_s < float("inf"):
            raise InputError(f"checkpoints must be some seconds apart, not {self.every_s}")


class CheckpointWriter:
    """Writes the checkpoints of one run, if they are wanted.

    One that cannot be written is a warning, the first time: the run goes on.
    """

    def __init__(self, plan: CheckpointPlan | None, identity: Identity) -> None:
        self._plan, self._identity = plan, identity
        self._saved_at, self._failed = time.perf_counter(), False

    def due(self) -> bool:
        """Whether it is time for another one."""
        plan = self._plan
        return plan is not None and time.perf_counter() >= self._saved_at + plan.every_s

    def write(self, state: State) -> None:
        """Write the state of now."""
        if self._plan is None:
            return
        try:
            save_checkpoint(self._plan.path, self._identity, state)
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
    image = BytesIO()
    values: State = {part: {} for part in state}
    with h5py.File(image, "w", userblock_size=_FRONT) as file:
        for part, content in state.items():
            for name, value in content.items():
                if isinstance(value, np.ndarray):
                    file[f"{part}/{name}"] = value
                else:
                    values[part][name] = value
        header = json.dumps({"identity": identity, "state": values}).encode()
        file["header"] = np.frombuffer(header, dtype=np.uint8)
    with image.getbuffer() as data:
        front = f"{_MAGIC} {FORMAT_VERSION} {_checksum([data[_FRONT:]])}\n".encode()
        data[: len(front)] = front
        write_atomic(path, data)


def load_checkpoint(path: str | os.PathLike[str]) -> tuple[Identity, State]:
    """Read a checkpoint.

    Raises
    ------
    InputError
        There is no such file, or it is no checkpoint, or is damaged.
    """
    name = f"the checkpoint {os.fspath(path)}"
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise InputError(f"{name} cannot be read ({error.strerror}); {_ANEW}") from error
    words = data[:_FRONT].partition(b"\n")[0].decode(errors="replace").split(" ")
    if " ".join(words[:-2]) != _MAGIC:
        raise InputError(
            f"{os.fspath(path)} is not a checkpoint; give the file that --checkpoint wrote"
        )
    *_, version, checksum = words
    if version != str(FORMAT_VERSION):
        raise InputError(
            f"{name} is of format {version}, and this ooc-fw reads {FORMAT_VERSION}; {_ANEW}"
        )
    if checksum != _checksum([memoryview(data)[_FRONT:]]):
        raise InputError(f"{name} is damaged (its checksum differs); {_ANEW}")
    with structure_errors(name), h5py.File(BytesIO(data), "r") as image:
        check_plain_tree(image)
        header = json.loads(image["header"][...].tobytes())
        state: State = header["state"]
        for part, group in image.items():
            if isinstance(group, h5py.Group):
                state[part] |= {key: dataset[...] for key, dataset in group.items()}
        return header["identity"], state


def _checksum(parts: Iterable[Any]) -> str:
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        total.update(part)
    return total.hexdigest()


# -- which run a state belongs to ----------------------------------------------------------------


def run_identity(problem: Problem, options: TrainOptions) -> Identity:
    """What tells one run from another; a file is known by its size and time of change."""
    source, penalties = problem.source, problem.penalties
    data = {
        name: getattr(source, name)
        for name in ("n_rows", "n_features", "sparse", "shuffled", "chunk_rows")
    }
    if problem.task != "classification":  # which is the default, and is not stored
        data["task"] = problem.task
    data["labels"] = _checksum([np.ascontiguousarray(problem.answers)])
    if penalties is not None:
        data["penalties"] = _checksum([np.ascontiguousarray(penalties)])
    if os.path.isfile(source.name):
        status = os.stat(source.name)
        data |= {"bytes": status.st_size, "modified_ns": status.st_mtime_ns}
    elif os.path.isdir(source.name):
        data |= _folder_state(source.name)
    else:
        data["rows"] = _checksum(_arrays(source))
    known = dataclasses.asdict(options)
    return {
        "data": data,
        "kernel": problem.kernel.to_dict(),
        "options": {name: known[name] for name in known if name not in _BUDGETS},
    }


def _folder_state(path: str) -> dict[str, int]:
    """Bytes of all files in a folder, and the last time that one of them changed."""
    found = [
        os.stat(os.path.join(place, name)) for place, _, names in os.walk(path) for name in names
    ]
    return {
        "bytes": sum(status.st_size for status in found),
        "modified_ns": max((status.st_mtime_ns for status in found), default=0),
    }


def _arrays(source: RowSource) -> Iterator[npt.NDArray[Any]]:
    """All rows, block by block."""
    for _, rows in iter_blocks(source, 0, source.n_rows):
        if isinstance(rows, CSRRows):
            yield from (rows.data, rows.indices, rows.indptr)
        else:
            yield np.ascontiguousarray(rows)


def check_same_run(path: str | os.PathLike[str], before: Identity, now: Identity) -> None:
    """Raise InputError, naming the differences, unless a checkpoint is of the run of now."""
    same = "give the same"
    for kind, other, advice in (
        ("data", "other data", "give the data it was made from (copied with their time of change)"),
        ("kernel", "another kernel", same),
        ("options", "other options", same),
    ):
        old, new = before[kind], now[kind]
        found = ", ".join(
            f"{key} {old.get(key)!r} (now {new.get(key)!r})"
            for key in {**old, **new}
            if old.get(key) != new.get(key)
        )
        if found:
            raise InputError(
                f"the checkpoint {os.fspath(path)} was made with {other}: {found}; {advice}, or "
                f"train without --resume"
            )
