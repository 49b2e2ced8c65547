"""Open rows of any kind: `open_source` picks the source by what it is given.

================================  =================================================================
given to `open_source`            read by an `ArraySource`, or a `CSRSource` if sparse, of
================================  =================================================================
path of HDF5, h5py file or group  ``hdf5.py``: data sets, by file offset where possible
path, group or array of zarr      ``zarrs.py``: chunks that are decoded once
array of Dask                     ``zarrs.py``: blocks that are computed once
path of .npy, numpy memory map    ``arrays.py``: one table, by file offset
AnnData object                    the rows in it, whatever they are
list of the above, but of arrays  a `StackedSource`: their rows, one below the other
numpy array, scipy sparse matrix  the array itself
================================  =================================================================

What rows, labels and names are made of stands once, in ``stores.py``.
"""

from __future__ import annotations

import functools
import logging
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ooc_fw.data import formats, hdf5, stores, zarrs
from ooc_fw.data.arrays import (
    ReadArray,
    Sliceable,
    find_in_map,
    open_npy,
)
from ooc_fw.data.encoded import hold_out
from ooc_fw.data.labels import (
    encode_labels,
    label_map,
    relabelled,
)
from ooc_fw.data.rows import AnyArray, Int64Array
from ooc_fw.data.sources import ArraySource, CSRSource, RowSource
from ooc_fw.data.views import StackedSource, SubsetSource, draw_parts
from ooc_fw.system.errors import DamageError, InputError, check_number

logger = logging.getLogger(__name__)


def open_source(
    data: Any,
    labels: Any = None,
    *,
    x_name: str = "X",
    label: str = "y",
    missing_labels: str = "refuse",
    labels_as: str | None = None,
) -> RowSource:
    """Open labelled rows, wherever they are kept, without loading them.

    Parameters
    ----------
    data : path, array, h5py object or RowSource, or list of them but arrays
        See the table in `ooc_fw.data.opening`. A `RowSource` is returned as it is. The rows of
        several files stand one below the other; columns have the same names or number.
    labels : path of a .npy file, array (in RAM, of h5py, zarr or Dask) or name, optional
        One label per row; replaces those in the file. A name is that of labels in `data`.
    x_name, label : str
        Names of rows and labels in an HDF5 file, a zarr store or an AnnData object: paths such as
        "layers/counts", "obsm/X_pca" and "obs/cell_type", where "obs/" may be left out.
    missing_labels : {"refuse", "drop"}
        Whether rows without a label are an error, or left out.
    labels_as : str, optional
        New labels, such as "normal=normal,*=attack", where * is every label that is not named.

    Returns
    -------
    RowSource
        Close it, or use it in a ``with`` statement.

    Examples
    --------
    >>> import numpy as np
    >>> with open_source(np.eye(3), labels=[1, -1, 1]) as source:
    ...     source.n_rows, source.read(0, 1)
    (3, array([[1., 0., 0.]], dtype=float32))
    """
    if isinstance(data, RowSource):
        if labels is not None or labels_as is not None:
            raise InputError(f"{data.name} is open already; give the labels where it is opened")
        return data
    if isinstance(labels, str) and not labels.endswith(".npy") and not os.path.exists(labels):
        label, labels = labels, None  # a name in the data
    elif labels is not None and label not in ("y", None):
        raise InputError("label and labels contradict each other; leave one of them out")
    if missing_labels not in ("refuse", "drop"):
        raise InputError(f"missing_labels must be refuse or drop, not {missing_labels!r}")
    names = (x_name, label if labels is None else None, missing_labels)
    given = None if labels is None else open_labels(labels)
    source = _open_all(data, given, names) if is_several(data) else _open_one(data, given, names)
    if given is not None and missing_labels == "drop":
        source = stores.with_labels_only(source, stores.missing_in(given).missing)
    if labels_as is not None:
        new = label_map(labels_as)
        source.relabel(lambda old: relabelled(old, new, source.name))
    return source


def _open_all(data: Sequence[Any], given: Sliceable | None, names: tuple[Any, ...]) -> RowSource:
    """Rows of several files, with their labels or with those given for all of them."""
    if len(data) == 1:
        return _open_one(data[0], given, names)
    with ExitStack() as stack:
        parts = [stack.enter_context(_open_one(part, None, names)) for part in data]
        source = StackedSource(*parts, labels=given)
        stack.pop_all()
    return source


def _open_one(data: Any, given: Sliceable | None, names: tuple[Any, ...]) -> RowSource:
    """Rows in one place, of the labels that are given, if any; else `names` are looked for."""
    if isinstance(data, RowSource):
        return data
    if isinstance(data, (str, os.PathLike)):
        return _open_path(os.fspath(data), given, *names)
    if is_annotated(data):
        return _open_annotated(data, given, *names)
    if isinstance(data, h5py.Group | h5py.Dataset) or zarrs.is_zarr(data):
        return stores.open_container(data, given, *names)
    if hasattr(data, "tocsr"):
        return CSRSource(data.tocsr(), given)
    if zarrs.is_dask(data):
        return stores.open_rows(zarrs.open_dask(data), given)
    columns = names_of_frame(data)
    array = _as_array(data, "array")
    if columns is not None and array.dtype.kind == "O":  # columns of several types
        with suppress(AttributeError, TypeError, ValueError):  # words are refused below
            array = np.asarray(data.astype(np.float64))
    in_file = find_in_map(array) if array.size and array.ndim == 2 else None
    source = ArraySource(array, given) if in_file is None else stores.open_rows(in_file, given)
    if in_file is not None:
        source.name = f"this map of {source.name}"  # whose rows may have other numbers there
    source.columns = columns
    return source


def _open_path(path: str, labels: Sliceable | None, *names: Any) -> RowSource:
    """Rows in a file or store; `names` are those of `stores.open_container`."""
    kind = "zarr" if formats.is_store(path) else _kind_of(path)
    with ExitStack() as resources:
        if kind == "npy":
            array = open_npy(path)
            resources.callback(array.close)
            source = stores.open_rows(array, labels)
        else:
            root = zarrs.open_store(path) if kind == "zarr" else hdf5.open_file(path)
            if kind == "hdf5":
                resources.callback(hdf5.close_file, root)
            source = stores.open_container(root, labels, *names)
            source.name = path
        source.on_close(resources.pop_all().close)
    place = path if formats.is_url(path) else os.path.abspath(path)
    seen = tuple(stamp.seen for stamp in source.stamps[:1])
    source.recipe = _reopen, (place, names, seen)
    return source


@functools.lru_cache(maxsize=16)
def _reopen(path: str, names: tuple[Any, ...], seen: tuple[Any, ...]) -> RowSource:
    """One open source per file and process, shared by all tasks that were sent there."""
    source = _open_path(path, None, *names)
    if source.recipe != (_reopen, (path, names, seen)):
        source.close()
        raise InputError(
            f"{source.name} is not the file it was when the work began; start again, and let all "
            f"machines see one file, or copies of equal size and time of change (cp -p)"
        )
    return source


@contextmanager
def borrow_source(
    X: Any, labels: Any = None, columns: Sequence[str] | None = None
) -> Iterator[RowSource]:
    """Source of `X`, closed afterwards unless `X` is one; `columns` name its features, if given."""
    source = open_source(X, labels)
    if columns is not None:
        source.columns = columns
    try:
        yield source
    finally:
        if source is not X:
            source.close()


def train_test_split(
    data: Any,
    test_share: float = 0.3,
    seed: int = 0,
    *,
    labels: Any = None,
    x_name: str = "X",
    label: str = "y",
    stratify: bool = False,
) -> tuple[SubsetSource, SubsetSource]:
    """Split labelled rows into two random parts, without loading or copying them.

    The test part of a file marked as shuffled is one run of consecutive rows, which may continue at
    row 0; that of other data is a random choice of single rows.

    Parameters
    ----------
    data, labels, x_name, label
        As for `open_dataset`. A `RowSource` stays open.
    test_share : float
        Share of the rows in the test part, above 0 and below 1.
    seed : int
        The same seed gives the same parts.
    stratify : bool
        Whether both parts have the same share of each class.

    Returns
    -------
    train, test : SubsetSource
        Each row is in one of them, in the order of the file. To be closed.

    Examples
    --------
    >>> import numpy as np
    >>> train, test = train_test_split(np.eye(10), 0.3, labels=np.arange(10) % 2)
    >>> train.n_rows, test.n_rows
    (7, 3)
    """
    if not isinstance(stratify, bool | np.bool_):
        raise InputError(f"stratify must be True or False, not {stratify!r}; see labels=")
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed must be a whole number from 0 on, not {seed!r}")
    names = {"labels": labels, "x_name": x_name, "label": label}
    first = open_source(data, **names)
    test_ranges = draw_test_rows(first, test_share, seed, stratify=stratify)
    train, test = hold_out(first, test_ranges)
    if first is not data:  # each part has a file of its own, so that either may be closed first
        second = open_source(data, **names)
        _, test = hold_out(second, test_ranges)
        train.on_close(first.close)
        test.on_close(second.close)
    return train, test


def draw_test_rows(
    source: RowSource, test_share: float, seed: int, *, stratify: bool
) -> Int64Array:
    """Ranges of the test part of `train_test_split`."""
    check_number("test_share", test_share)
    n_test = round(test_share * source.n_rows) if 0 < test_share < 1 else 0
    if not 0 < n_test < source.n_rows:
        raise InputError(
            f"a share of {test_share} of the {source.n_rows} rows of {source.name} leaves one part "
            f"empty; choose another share"
        )
    codes = encode_labels(source)[1] if stratify else None
    rng = np.random.default_rng(seed)
    (ranges,) = draw_parts(source.n_rows, [n_test], source.shuffled is True, rng, codes)
    return ranges


class UnconvertedError(InputError):
    """A file of text or of a table, whose rows are read after a conversion only."""

    def __init__(self, path: str, what: str, options: str) -> None:
        super().__init__(f"{path} is {what}; convert it first: {conversion(path)}{options}")
        self.path, self.what = path, what


def _kind_of(path: str) -> str:
    """Kind of a file of rows: "hdf5" or "npy"; InputError for other files."""
    if formats.is_url(path):
        if path.endswith((".h5ad", ".h5", ".hdf5")):
            raise InputError(f"{path} is remote HDF5; download it, or use a zarr store")
        raise UnconvertedError(path, "remote, and no zarr store", "")
    kind = formats.detect_format(path)
    if kind in formats.TABLES:  # of which only the user knows the column of labels
        raise UnconvertedError(path, "a table", " --label COLUMN")
    formats.check_regular(path)
    if kind in ("hdf5", "npy"):
        return kind
    head = formats.read_head(path)
    if formats.format_of(head) is not None:
        raise UnconvertedError(path, "compressed", "")
    if head and b"\0" not in head:
        raise UnconvertedError(path, "LIBSVM text", "")
    raise DamageError(
        f"{path} is neither HDF5 nor .npy, or it is empty or damaged; make it with ooc-fw convert"
    )


def conversion(path: str, *more: str) -> str:
    """The command that converts a file, or several to one."""
    name = Path(path).name
    target = f"{name.split('.')[0]}.h5"
    target = target if target != name else f"converted-{target}"
    return shlex.join(["ooc-fw", "convert", path, *more, target])


def open_labels(labels: Any) -> Sliceable:
    """Labels given apart from the rows: a .npy file by its path, a data set, or an array."""
    if isinstance(labels, ReadArray):
        return labels
    name = "the labels"
    array = labels
    if isinstance(labels, h5py.Dataset) or zarrs.is_zarr(labels):
        name = f"{name} {stores.place_of(labels)}"
    elif zarrs.is_dask(labels):
        array = zarrs.open_dask(labels)
    elif isinstance(labels, (str, os.PathLike)):
        name = os.fspath(labels)
        if formats.format_of(formats.read_head(name)) != "npy":
            raise InputError(
                f"the labels {name} must be a .npy file; write them with numpy.save, or name a "
                f"column of labels beside the rows"
            )
        array = open_npy(name)
    else:
        array = _as_array(labels, "labels")
    return stores.labels_in(array, name, sums={}).values


def names_of_frame(data: Any) -> list[str] | None:
    """Names of the columns of a frame or table in RAM, text or not; None for what has none."""
    names = getattr(data, "column_names", getattr(data, "columns", None))
    if names is None or len(getattr(data, "shape", ())) != 2:
        return None
    return [formats.as_text(name) for name in names]


def check_unmasked(data: Any, name: str) -> None:
    """Raise InputError for masked values, which numpy and scikit-learn take for values."""
    n_masked = int(np.ma.getmaskarray(data).sum()) if isinstance(data, np.ma.MaskedArray) else 0
    if n_masked:
        raise InputError(
            f"{n_masked} values of the {name} are masked; fill them (filled() in numpy), or leave "
            f"their rows out"
        )


def _as_array(data: Any, name: str) -> AnyArray:
    check_unmasked(data, name)
    try:
        return np.asarray(data)
    except ValueError as error:  # rows of different lengths
        raise InputError(f"the {name} cannot be made an array ({error})") from error


def is_several(data: Any) -> bool:
    """Whether `data` is a list of what has rows, rather than a table of numbers."""
    kinds = str, os.PathLike, RowSource
    return isinstance(data, list | tuple) and bool(
        data and all(isinstance(part, kinds) or is_annotated(part) for part in data)
    )


def is_annotated(data: Any) -> bool:
    """Whether `data` is an AnnData object, or alike."""
    return all(hasattr(data, name) for name in ("X", "obs", "var_names", "shape"))


def _open_annotated(
    data: Any, given: Sliceable | None, x_name: str, label: str | None, missing: str
) -> RowSource:
    """Rows of an AnnData object, and a column of its ``obs`` or other labels."""
    this = f"this {type(data).__name__}"
    kind, _, name = x_name.partition("/")
    held = {"": data.X} if kind == "X" else {}
    rows = (getattr(data, kind) if kind in ("layers", "obsm") else held).get(name)
    if rows is None:
        paths = [f"{part}/{key}" for part in ("layers", "obsm") for key in getattr(data, part)]
        raise InputError(f"{this} has no rows {x_name!r}; it has {', '.join(paths) or 'X'}")
    named = stores.Labels(given) if given is not None else None
    if label not in ("y", None):
        column = str(label).removeprefix("obs/")
        if column not in data.obs:
            has = ", ".join(map(str, data.obs))
            raise InputError(f"the obs of {this} has no {column!r}; it has {has}")
        codes, categories = data.obs[column].factorize()
        named = stores.coded_labels(codes, np.asarray(categories.to_numpy()), repr(label))
        stores.check_labelled(named, repr(label), missing)
    source = _open_one(
        getattr(rows, "group", rows),  # of a file: the group that it reads
        None if named is None else named.values,
        ("X", None, missing),
    )
    if stores.place_of_names(x_name) is not None:
        source.columns = [formats.as_text(word) for word in data.var_names]
    return source if named is None else stores.with_labels_only(source, named.missing)
