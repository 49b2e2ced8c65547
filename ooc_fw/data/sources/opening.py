"""What may be read of an HDF5 file that somebody else wrote, and how it is opened.

Owns the checks that a file passes before anything of it is allocated or read: its links stay inside
it, its values are stored in it, all of them, and their size is one that a file of its length can
hold. HDF5 itself follows links into other files, gives fill values for what was never written, and
reads zeros behind the end of a file.

Virtual data sets are the one exception to "inside the file": their parts may lie in other files, if
those are there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import h5py
import numpy as np

from ooc_fw.system.errors import DamageError, InputError

Node: TypeAlias = Any  # an h5py.Dataset or h5py.Group; h5py carries no type hints

H5PY_ERRORS = (
    OSError,
    LookupError,
    RuntimeError,
    ValueError,
    TypeError,
    ArithmeticError,
    AttributeError,
    MemoryError,
    SystemError,
)
"""What h5py raises, depending on the place, for a file whose structure is damaged."""

_MOST_LINKS = 32  # soft links on the way to one object
_MOST_LEVELS = 8  # virtual data sets made of virtual data sets

_DEEPEST, _MOST_OBJECTS = 4, 1 << 20  # groups within groups, and objects, of a file of ours

_LARGEST_RATIO = {1: 1032, 2: 1, 3: 1, 32000: 264, 32004: 255}
"""Bytes that a byte can stand for, by filter: deflate, shuffle, fletcher32, lzf, lz4."""

_UNKNOWN_RATIO = 1 << 20
"""The same for filters that write a constant chunk of any size in a few bytes."""


def open_file(path: str) -> Node:
    """Open an HDF5 file for reading, with errors as sentences.

    HDF5 compares the size of the file with the one it had when it was last closed, so that a file
    that was cut short does not open.
    """
    check_regular(path)
    try:
        return h5py.File(path, "r")
    except PermissionError as error:
        raise InputError(f"{path} cannot be opened: {os.strerror(error.errno or 0)}") from error
    except OSError as error:
        if "unable to lock file" in str(error):
            raise InputError(
                f"{path} is being written by another program; wait until that is done"
            ) from error
        raise DamageError(f"{path} cannot be opened as HDF5 ({error}); write it again") from error
    except H5PY_ERRORS as error:
        raise DamageError(f"{path} cannot be opened as HDF5 ({error}); write it again") from error


def check_regular(path: str) -> None:
    """Raise InputError unless there is a regular file at `path`.

    Rows are read at any place and more than once, which a pipe or a device does not allow.
    """
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
    """Path of the file that `node` is in."""
    return str(node.file.filename)


def is_plain_file(file: Node) -> bool:
    """Whether `file` is one file on disk that nobody in this process writes to."""
    return file.mode == "r" and file.driver == "sec2" and os.path.isfile(file.filename)


def find_node(group: Node, name: str, n_links: int = 0) -> Node:
    """Object at a path below `group`, or from the root of its file where the path begins with "/".

    Parameters
    ----------
    group : h5py.Group
        Where to begin.
    name : str
        Names of links with "/" between them.
    n_links : int
        Soft links that led here.

    Returns
    -------
    h5py.Dataset, h5py.Group or None
        None where there is no such object.

    Raises
    ------
    InputError
        A link leads out of the file, or soft links lead in a circle.
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


def check_plain_tree(file: Node) -> None:
    """Raise InputError unless all objects of a file are its own, each with its values in it.

    For files that only this program writes, which have neither soft links nor virtual data sets,
    and few groups within groups.
    """
    below = [(0, file)]
    n_objects = 0
    while below:
        level, group = below.pop()
        for name in group:
            n_objects += 1
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise InputError(f"{name!r} is a link to something else")
            node = group[name]
            if isinstance(node, h5py.Dataset):
                if node.is_virtual:
                    raise InputError(f"{name!r} has its values elsewhere")
                check_storage(node)
            elif level < _DEEPEST and n_objects < _MOST_OBJECTS:
                below.append((level + 1, node))
            else:
                raise InputError(f"{name!r} is one group too many, perhaps a link in a circle")


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


def check_storage(dataset: Node) -> list[str]:
    """See that all values of a data set are stored, before any of them is read.

    Parameters
    ----------
    dataset : h5py.Dataset
        To be read.

    Returns
    -------
    list of str
        Other files that hold parts of it, if it is a virtual data set.

    Raises
    ------
    InputError
        The values lie in other files, or were never written in part.
    DamageError
        A part of them lies outside the file, or is too short for what it should hold.
    """
    return _check_storage(dataset, ())


def _check_storage(dataset: Node, within: tuple[Any, ...]) -> list[str]:
    path, name = file_name(dataset), dataset.name
    properties = dataset.id.get_create_plist()
    if dataset.shape is None:
        raise InputError(f"{path}: {name!r} holds no values at all; write it again")
    if properties.get_external_count():
        raise InputError(
            f"{path}: {name!r} keeps its values in another file "
            f"({os.fsdecode(properties.get_external(0)[0])}), which is not followed; copy the data "
            f"into this one"
        )
    layout = properties.get_layout()
    if dataset.size == 0 or layout == h5py.h5d.COMPACT:
        return []
    if layout == h5py.h5d.VIRTUAL:
        return _check_sources(dataset, within)
    end = _end_of_chunks(dataset) if layout == h5py.h5d.CHUNKED else _end_of_block(dataset)
    if is_plain_file(dataset.file) and not dataset.file.userblock_size:
        n_bytes = os.path.getsize(path)
        if end > n_bytes:
            raise DamageError(
                f"{path} is damaged: {name} shall lie in bytes up to {end}, but the file has "
                f"{n_bytes}; restore a copy or write it again"
            )
    return []


def _never_written(dataset: Node, part: str) -> InputError:
    return InputError(
        f"{file_name(dataset)}: {dataset.name!r} is said to have {dataset.shape[0]} rows, but "
        f"{part} never written; write all of it, or make it smaller"
    )


def _end_of_block(dataset: Node) -> int:
    """Byte behind the values of a data set that lies in one piece."""
    offset, stored = dataset.id.get_offset(), dataset.id.get_storage_size()
    if stored == 0 or (offset is None and is_plain_file(dataset.file)):
        raise _never_written(dataset, "its values were")
    if stored < dataset.nbytes:
        raise DamageError(
            f"{file_name(dataset)} is damaged: {dataset.name} has {stored} bytes for "
            f"{dataset.nbytes} bytes of values; restore a copy or write it again"
        )
    return int((offset or 0) + stored)


def _end_of_chunks(dataset: Node) -> int:
    """Last byte of the chunks of a data set, all of which are there and not too short."""
    lengths = zip(dataset.shape, dataset.chunks, strict=True)
    n_chunks = math.prod(-(-length // chunk) for length, chunk in lengths)
    n_stored = dataset.id.get_num_chunks()
    if n_stored != n_chunks:
        raise _never_written(dataset, f"{n_chunks - n_stored} of its {n_chunks} chunks were")
    properties = dataset.id.get_create_plist()
    codes = [properties.get_filter(k)[0] for k in range(properties.get_nfilters())]
    ratio = math.prod(_LARGEST_RATIO.get(code, _UNKNOWN_RATIO) for code in codes)
    chunk_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    end, shortest = 0, chunk_bytes

    def note(chunk: Any) -> None:
        nonlocal end, shortest
        end, shortest = max(end, chunk.byte_offset + chunk.size), min(shortest, chunk.size)

    dataset.id.chunk_iter(note)
    if shortest * ratio < chunk_bytes:
        raise DamageError(
            f"{file_name(dataset)} is damaged: {dataset.name} has a chunk of {chunk_bytes} bytes "
            f"stored in {shortest}, which no compression could do; restore a copy or write it again"
        )
    return int(end)


# -- virtual data sets ---------------------------------------------------------------------------


def _check_sources(dataset: Node, within: tuple[Any, ...]) -> list[str]:
    """Files that a virtual data set is made of, all of which are there."""
    path, name = file_name(dataset), dataset.name
    this = os.path.realpath(path), name
    if this in within or len(within) >= _MOST_LEVELS:
        raise InputError(f"{path}: the virtual data set {name!r} is made of itself")
    parts = dataset.virtual_sources()
    if not _cover(dataset.shape, [part.vspace for part in parts]):
        raise InputError(
            f"{path}: the virtual data set {name!r} does not say for each of its values, once, "
            f"which file holds it; name its parts with fixed sizes and without gaps"
        )
    files: dict[str, None] = {}
    for source in dict.fromkeys(part.file_name for part in parts):
        inside = source == "."
        found = path if inside else _locate(source, this[0])
        if found is None:
            raise InputError(
                f"{path}: the virtual data set {name!r} needs the file {source}, which is not "
                f"there; put it back, or write the data set again"
            )
        file = dataset.file if inside else open_file(found)
        try:
            for part in parts:
                if part.file_name == source:
                    files |= dict.fromkeys(_check_part(file, found, part, (*within, this)))
        finally:
            if not inside:
                close_file(file)
        files |= {} if inside else {found: None}
    return list(files)


def _check_part(file: Node, path: str, part: Any, within: tuple[Any, ...]) -> list[str]:
    """See that a part of a virtual data set is there; other files that it is made of."""
    node = find_node(file, part.dset_name)
    if not isinstance(node, h5py.Dataset):
        raise InputError(
            f"{within[-1][0]}: the virtual data set {within[-1][1]!r} needs {part.dset_name!r} of "
            f"{path}, which is no data set there; write it again"
        )
    check_filters(node)
    others = _check_storage(node, within)
    if part.src_space.get_select_type() == h5py.h5s.SEL_ALL:
        fits = node.size == part.vspace.get_select_npoints()
    else:
        last = part.src_space.get_select_bounds()[1]
        fits = len(last) == node.ndim and all(np.array(last) < node.shape)
    if not fits:
        raise InputError(
            f"{within[-1][0]}: the virtual data set {within[-1][1]!r} needs other values of "
            f"{part.dset_name!r} of {path}, whose shape is {node.shape}; write it again"
        )
    return others


def _locate(name: str, of: str) -> str | None:
    """Where HDF5 would find a file that the file `of` names; None where it would not."""
    if "%b" in name.replace("%%", ""):  # any number of files, each of which may be missing
        return None
    name = name.replace("%%", "%")
    folder = os.path.dirname(of)
    prefix = os.environ.get("HDF5_VDS_PREFIX", "").replace("${ORIGIN}", folder)
    places = [os.path.join(prefix, name)] if prefix else []
    if os.path.isabs(name):
        places = [name, *places, os.path.join(folder, os.path.basename(name))]
    else:
        places += [os.path.join(folder, name), name]
    for place in places:
        if os.path.isfile(place):
            return os.path.realpath(place)
    return None


def _cover(shape: tuple[int, ...], spaces: list[Any]) -> bool:
    """Whether selections cover all of a table, and none of it twice.

    Selections are counted; then those of whole rows must have different rows, and others be solid
    blocks that do not overlap.
    """
    counts = [int(space.get_select_npoints()) for space in spaces]
    if sum(counts) != math.prod(shape):
        return False
    boxes = []
    for space, count in zip(spaces, counts, strict=True):
        low, high = (np.array(corner) for corner in space.get_select_bounds())
        if count != math.prod((high - low + 1).tolist()):
            return _rows_differ(shape, spaces)
        boxes.append((low, high))
    boxes.sort(key=lambda box: tuple(box[0].tolist()))
    for k, (_, high) in enumerate(boxes):
        for low, other in boxes[k + 1 :]:
            if low[0] > high[0]:
                break
            if (low <= high).all() and (other >= boxes[k][0]).all():
                return False
    return True


def _rows_differ(shape: tuple[int, ...], spaces: list[Any]) -> bool:
    """Whether selections are of whole rows at even distances, and no row is in two of them."""
    seen = np.zeros(shape[0], dtype=bool)
    for space in spaces:
        if not space.is_regular_hyperslab():
            return False
        start, stride, count, block = (np.array(part) for part in space.get_regular_hyperslab())
        solid = ((count == 1) | (stride == block))[1:].all()
        if not solid or any(start[1:]) or tuple((count * block)[1:]) != shape[1:]:
            return False
        first = start[0] + stride[0] * np.arange(count[0])
        rows = (first[:, None] + np.arange(block[0])).ravel()
        if seen[rows].any():
            return False
        seen[rows] = True
    return True
