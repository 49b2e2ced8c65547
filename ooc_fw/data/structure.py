"""A first look at HDF5 files: where their links lead, and whether HDF5 comes to an end in them.

HDF5 runs through some damaged structures in circles, and no signal reaches Python meanwhile. A
process of its own therefore looks first through a file of another program. The system ends it if
one object takes too long. Files of this package hold nothing of variable length that they read.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import h5py

from ooc_fw.data.sources import FileStamp, stamp_of
from ooc_fw.system.errors import DamageError

_SECONDS = 3.0  # most processor time for the attributes of an object, or for `_TEXTS` texts
_TEXTS = 1 << 16  # texts that are read at once


def _is_written(names: set[str], path: Path) -> bool:
    """Whether a file is HDF5 from this program, with these attributes or objects at its root."""
    found = False
    with suppress(Exception), h5py.File(path) as file:  # it raises many kinds for damaged files
        attributes = {*file.attrs}
        found = "format_version" in attributes and names <= {*attributes, *file}
    return found


is_data = partial(_is_written, {"n_features"})
"""Whether a file looks like one of ``ooc-fw convert``."""

is_model = partial(_is_written, {"kernel"})
"""Whether a file looks like a model."""

is_checkpoint = partial(_is_written, {"kernel", "run"})
"""Whether a file looks like a checkpoint."""


def linked_files(path: str) -> list[str]:
    """Names of an HDF5 file and of all files to which its links lead.

    DamageError is raised if HDF5 does not come to an end in it.
    """
    return _linked_files(os.path.abspath(path), stamp_of(path))


@lru_cache(maxsize=64)
def _linked_files(path: str, _: FileStamp) -> list[str]:
    found: list[str] = []
    if is_data(Path(path)) or is_model(Path(path)):
        with suppress(OSError), h5py.File(path) as file:
            _follow(file, found)
        return found
    words = [sys.executable, "-P", "-m", "ooc_fw.data.structure", path]
    where = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with suppress(OSError):  # without another process, and on Windows, it is opened as it is
        ended = subprocess.run(words, env=where, stdin=subprocess.DEVNULL, capture_output=True)
        if ended.returncode < 0:
            raise DamageError(
                f"{path} is damaged: HDF5 does not come to an end in it; restore a copy or write "
                f"it again"
            )
        found = json.loads(ended.stdout or "[]")
    return found or [path]


def _follow(file: Any, found: list[str], look: Callable[[str, Any], None] | None = None) -> None:
    """Append the names of a file and of those behind its links; `look` at each of their objects."""
    if file.filename in found:
        return
    found.append(file.filename)

    def note(name: str, link: Any) -> None:
        if isinstance(link, h5py.ExternalLink):
            with suppress(Exception):  # there may be no such file
                _follow(file[name].file, found, look)

    with suppress(Exception):  # whoever uses what is damaged names it
        file.visititems_links(note)
        if look is not None:
            look("", file)
            file.visititems(look)


def _look(_: str, node: Any) -> None:
    """Read the attributes and texts of an object; the system ends this process in a circle."""
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    with suppress(Exception):
        dict(node.attrs)
    with suppress(Exception):
        if node.chunks is not None:
            signal.setitimer(signal.ITIMER_PROF, 20 * _SECONDS)  # there may be 10^8 chunks
            node.id.get_num_chunks()
        if node.dtype.hasobject:
            for start in range(0, len(node), _TEXTS):
                signal.setitimer(signal.ITIMER_PROF, _SECONDS)
                node[start : start + _TEXTS]


if __name__ == "__main__":
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    names: list[str] = []
    with h5py.File(sys.argv[1]) as looked_at:
        _follow(looked_at, names, _look)
    print(json.dumps(names))
