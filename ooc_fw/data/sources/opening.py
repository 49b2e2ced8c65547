"""Open HDF5 files that somebody else may have written, and find objects in them.

A file passes checks before anything of it is allocated or read: its links stay inside it, and its
filters are installed. Whether all values are stored is checked by `ooc_fw.data.sources.storage`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import h5py

from ooc_fw.system.errors import DamageError, InputError

Node: TypeAlias = Any  # an h5py.Dataset or h5py.Group; h5py has no type hints

H5PY_ERRORS = (
    *(OSError, LookupError, RuntimeError, ValueError, TypeError),
    *(ArithmeticError, AttributeError, MemoryError, SystemError),
)
"""What h5py raises, depending on the place, for a file whose structure is damaged."""

_MOST_LINKS = 32  # soft links that are followed on the way to one object


def open_file(path: str) -> Node:
    """Open an HDF5 file for reading; HDF5 itself refuses one that was cut short."""
    check_regular(path)
    try:
        return h5py.File(path, "r")
    except PermissionError as error:
        raise InputError(f"{path} cannot be opened: {os.strerror(error.errno or 0)}") from error
    except H5PY_ERRORS as error:
        if isinstance(error, OSError) and "unable to lock file" in str(error):
            raise InputError(
                f"{path} is being written by another program; wait until that is done"
            ) from error
        raise DamageError(f"{path} cannot be opened as HDF5 ({error}); write it again") from error


def check_regular(path: str) -> None:
    """Raise InputError for what is no regular file: rows are read more than once."""
    if "\0" in path:
        raise InputError(
            f"{path!r} cannot be the name of a file; give one without a null character"
        )
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; give a file in it")
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(
            f"{path} is a pipe or a device, and rows are read more than once; write them to a file"
        )


def close_file(file: Node) -> None:
    """Close an HDF5 file that may be damaged."""
    with suppress(*H5PY_ERRORS):
        file.close()


@contextmanager
def structure_errors(path: str) -> Iterator[None]:
    """Turn what h5py raises for a file whose structure is damaged into a sentence."""
    try:
        yield
    except InputError:
        raise
    except H5PY_ERRORS as error:
        raise DamageError(
            f"{path} is damaged: its structure cannot be followed ({error}); restore a copy or "
            f"write it again"
        ) from error


def file_name(node: Node) -> str:
    """Path of the file that contains `node`."""
    return str(node.file.filename)


def is_plain_file(file: Node) -> bool:
    """Whether `file` is one file on disk that nobody in this process writes to."""
    return file.mode == "r" and file.driver == "sec2" and os.path.isfile(file.filename)


def find_node(group: Node, name: str, n_links: int = 0) -> Node:
    """Object at a path below `group`, or below the root of its file if the path begins with "/".

    None where there is no such object; `n_links` soft links have been followed so far. InputError
    is raised for a link that leads out of the file, and for soft links that lead in a circle.
    """
    node = group.file["/"] if name.startswith("/") else group
    for part in name.split("/"):
        if part in ("", "."):
            continue
        link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
        if link is None:
            return None
        if isinstance(link, h5py.ExternalLink):
            raise InputError(
                f"{file_name(group)}: {name!r} is a link to another file ({link.filename}), which "
                f"is not followed; name that file, or copy the data into this one"
            )
        if not isinstance(link, h5py.SoftLink):
            node = node[part]
        elif n_links < _MOST_LINKS:
            node = find_node(node, link.path, n_links + 1)
        else:
            raise InputError(f"{file_name(group)}: the links of {name!r} lead in a circle")
    return node


def check_filters(dataset: Node) -> None:
    """Raise InputError when the compression of `dataset` is not installed."""
    properties = dataset.id.get_create_plist()
    for position in range(properties.get_nfilters()):
        code, _, _, label = properties.get_filter(position)
        if not h5py.h5z.filter_avail(code):
            with suppress(ImportError):
                import hdf5plugin  # noqa: F401  (registers its filters on import)
        if not h5py.h5z.filter_avail(code):
            known = label.decode(errors="replace") or "unnamed"
            raise InputError(
                f"{file_name(dataset)} is compressed with HDF5 filter {code} ({known}), which is "
                f"not installed; try: pip install 'ooc-fw[compression]'"
            )
