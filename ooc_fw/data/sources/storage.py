"""Whether all values of an HDF5 data set are stored, checked before any of them is read.

HDF5 itself follows links into other files, returns fill values for what was never written, and
zeros for what lies behind the end of a file. Only virtual data sets may take their values from
other files, if these are there.
"""

from __future__ import annotations

import math
import os
from typing import Any

import h5py
import numpy as np

from ooc_fw.data.sources.opening import (
    Node,
    check_filters,
    close_file,
    file_name,
    find_node,
    is_plain_file,
    open_file,
)
from ooc_fw.system.errors import DamageError, InputError

_MOST_LEVELS = 8  # depth to which virtual data sets may be made of virtual data sets

_DEEPEST, _MOST_OBJECTS = 4, 1 << 20
"""Depth of groups, and number of objects, of a file that only this program writes."""

# Bytes that a byte can stand for, by filter: deflate, shuffle, fletcher32, lzf, lz4.
_LARGEST_RATIO = {1: 1032, 2: 1, 3: 1, 32000: 264, 32004: 255}
# The same for filters that write a constant chunk of any size in a few bytes.
_UNKNOWN_RATIO = 1 << 20


def check_plain_tree(file: Node) -> None:
    """Raise InputError unless all objects of a file are its own, each with its values in it.

    For files that only this program writes: they have no links, no virtual data sets, and few
    groups within groups.
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


def check_storage(dataset: Node, within: tuple[tuple[str, str], ...] = ()) -> list[str]:
    """Check that all values of a data set are stored; return other files that hold parts of it.

    Only a virtual data set has such files; `within` holds file and name of those around this one.
    InputError is raised for values that lie elsewhere or were never written, DamageError for values
    outside the file or in fewer bytes than they take.
    """
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
        return _check_virtual(dataset, within)
    end = _end_of_chunks(dataset) if layout == h5py.h5d.CHUNKED else _end_of_block(dataset)
    if is_plain_file(dataset.file) and not dataset.file.userblock_size:
        n_bytes = os.path.getsize(path)
        if end > n_bytes:
            raise _damage(dataset, f"should lie in bytes up to {end}, but the file has {n_bytes}")
    return []


def _never_written(dataset: Node, part: str) -> InputError:
    return InputError(
        f"{file_name(dataset)}: {dataset.name!r} is said to have {dataset.shape[0]} rows, but "
        f"{part} never written; write all of it, or make it smaller"
    )


def _damage(dataset: Node, what: str) -> DamageError:
    return DamageError(
        f"{file_name(dataset)} is damaged: {dataset.name} {what}; restore a copy or write it again"
    )


def _end_of_block(dataset: Node) -> int:
    """Byte after the values of a data set that lies in one piece."""
    offset, stored = dataset.id.get_offset(), dataset.id.get_storage_size()
    if stored == 0 or (offset is None and is_plain_file(dataset.file)):
        raise _never_written(dataset, "its values were")
    if stored < dataset.nbytes:
        raise _damage(dataset, f"has {stored} bytes for {dataset.nbytes} bytes of values")
    return int((offset or 0) + stored)


def _end_of_chunks(dataset: Node) -> int:
    """Byte after the last chunk of a data set, of which all chunks are stored and long enough."""
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
        raise _damage(
            dataset,
            f"has a chunk of {chunk_bytes} bytes stored in {shortest}, which no compression could "
            f"do",
        )
    return int(end)


# -- virtual data sets ---------------------------------------------------------------------------


def _check_virtual(dataset: Node, within: tuple[tuple[str, str], ...]) -> list[str]:
    """Files that a virtual data set is made of, all of which are there."""
    path = file_name(dataset)
    this = os.path.realpath(path), dataset.name
    what = f"{path}: the virtual data set {dataset.name!r}"
    if this in within or len(within) >= _MOST_LEVELS:
        raise InputError(f"{what} is made of itself")
    parts = dataset.virtual_sources()
    if not _cover(dataset.shape, [part.vspace for part in parts]):
        raise InputError(
            f"{what} does not say for each of its values, once, which file holds it; name its "
            f"parts with fixed sizes and without gaps"
        )
    files: dict[str, None] = {}
    for source in dict.fromkeys(part.file_name for part in parts):
        inside = source == "."
        found = path if inside else _locate(source, this[0])
        if found is None:
            raise InputError(
                f"{what} needs the file {source}, which is not there; put it back, or write the "
                f"data set again"
            )
        file = dataset.file if inside else open_file(found)
        try:
            for part in parts:
                if part.file_name == source:
                    others = _check_part(file, part, f"{what} needs", found, (*within, this))
                    files |= dict.fromkeys(others)
        finally:
            if not inside:
                close_file(file)
        files |= {} if inside else {found: None}
    return list(files)


def _check_part(
    file: Node, part: Any, needs: str, path: str, within: tuple[tuple[str, str], ...]
) -> list[str]:
    """Check that a part of a virtual data set is there; return the files that it is made of."""
    node = find_node(file, part.dset_name)
    if not isinstance(node, h5py.Dataset):
        raise InputError(
            f"{needs} {part.dset_name!r} of {path}, which is no data set there; write it again"
        )
    check_filters(node)
    others = check_storage(node, within)
    if part.src_space.get_select_type() == h5py.h5s.SEL_ALL:
        fits = node.size == part.vspace.get_select_npoints()
    else:
        last = part.src_space.get_select_bounds()[1]
        fits = len(last) == node.ndim and all(np.array(last) < node.shape)
    if not fits:
        raise InputError(
            f"{needs} other values of {part.dset_name!r} of {path}, whose shape is {node.shape}; "
            f"write it again"
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
    found = next((place for place in places if os.path.isfile(place)), None)
    return None if found is None else os.path.realpath(found)


def _cover(shape: tuple[int, ...], spaces: list[Any]) -> bool:
    """Whether selections cover all of a table, and none of it twice.

    Their sizes add up to that of the table, and so does the size of their union.
    """
    size = math.prod(shape)
    if sum(int(space.get_select_npoints()) for space in spaces) != size:
        return False
    union = h5py.h5s.create_simple(shape)
    union.select_none()
    for space in spaces:
        if space.get_select_type() == h5py.h5s.SEL_ALL:
            union.select_all()
        elif space.is_regular_hyperslab():
            start, stride, count, block = space.get_regular_hyperslab()
            union.select_hyperslab(start, count, stride, block, op=h5py.h5s.SELECT_OR)
        else:
            return False
    return bool(union.get_select_npoints() == size)
