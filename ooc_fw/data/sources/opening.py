"""HDF5 files that somebody else may have written: checked before anything of them is read.

HDF5 itself follows links into other files, returns fill values for what was never written, and
zeros for what lies behind the end of a file. Here links stay inside the file, filters are
installed, and all values are stored; only virtual data sets may take them from other files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeAlias

import h5py
import numpy as np

from ooc_fw.data.formats import format_of, read_head
from ooc_fw.system.errors import DamageError, InputError, unreadable

Node: TypeAlias = Any  # an h5py.Dataset or h5py.Group; h5py has no type hints

# What h5py raises, depending on the place, for a file whose structure is damaged.
H5PY_ERRORS = (
    *(OSError, LookupError, RuntimeError, ValueError, TypeError),
    *(ArithmeticError, AttributeError, MemoryError, SystemError),
)
_MOST_LINKS = 32  # soft links that are followed on the way to one object
_MOST_LEVELS = 8  # depth to which virtual data sets may be made of virtual data sets
# Depth of groups, and number of objects, of a file that only this program writes.
_DEEPEST, _MOST_OBJECTS = 4, 1 << 20
# Bytes that a byte can stand for, by filter: deflate, shuffle, fletcher32, lzf, lz4.
_LARGEST_RATIO = {1: 1032, 2: 1, 3: 1, 32000: 264, 32004: 255}
# The same for filters that write a constant chunk of any size in a few bytes.
_UNKNOWN_RATIO = 1 << 20


def open_file(path: str) -> Node:
    """Open an HDF5 file for reading; HDF5 itself refuses one that was cut short."""
    check_regular(path)
    if os.path.isfile(path) and format_of(read_head(path)) == "checkpoint":
        raise InputError(
            f"{path} is a checkpoint of a run; see ooc-fw info {path}, and resume the run with "
            f"ooc-fw train DATA --resume {path}"
        )
    try:
        return h5py.File(path, "r")
    except H5PY_ERRORS as error:
        if isinstance(error, OSError) and "unable to lock file" in str(error):
            raise InputError(
                f"{path} is being written by another program; wait until that is done"
            ) from error
        damage = DamageError(f"{path} cannot be opened as HDF5 ({error}); write it again")
        raise unreadable(path, error) or damage from error


def is_model(group: Node) -> bool:
    """Whether an HDF5 file is a model."""
    return "kernel" in group.attrs and "support_vectors" in set(group)


def check_no_model(file: Node) -> None:
    """Raise InputError for a model in place of data."""
    if is_model(file):
        name = file_name(file)
        raise InputError(f"{name} is a model; give data here, and see ooc-fw info {name}")


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
    """Turn what h5py raises for a file that is damaged, or cannot be read, into a sentence."""
    try:
        yield
    except InputError:
        raise
    except H5PY_ERRORS as error:
        raise unreadable(path, error) or DamageError(
            f"{path} is damaged: its structure cannot be followed ({error}); restore a copy or "
            f"write it again"
        ) from error


def file_name(node: Node) -> str:
    """Path of the file that contains `node`."""
    return str(node.file.filename)


def chunk_length(dataset: Node) -> int:
    """Rows or elements of a chunk; all of them where there are no chunks."""
    return max(1, int((dataset.chunks or dataset.shape)[0]))


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


# -- values --------------------------------------------------------------------------------------


def check_plain_tree(file: Node) -> None:
    """Raise InputError unless all objects of a file are its own, each with its values in it.

    For files that only this program writes, which have few groups within groups.
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
                if node.id.get_storage_size() < node.nbytes:
                    raise InputError(
                        f"{name!r} takes {node.nbytes} bytes and is stored in fewer, and such "
                        f"files hold their values uncompressed"
                    )
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
        with nullcontext(dataset.file) if inside else open_file(found) as file:
            for part in parts:
                if part.file_name == source:
                    others = _check_part(file, part, f"{what} needs", found, (*within, this))
                    files |= dict.fromkeys(others)
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
