"""Open rows in any kind of storage, and split them into two parts."""

from __future__ import annotations

import functools
import logging
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import h5py
import numpy as np

from ooc_fw.data import containers, formats
from ooc_fw.data.arrays import Sliceable, open_npy, path_of
from ooc_fw.data.containers import is_annotated, labels_in, open_container, open_rows, parts_of
from ooc_fw.data.encoded import hold_out
from ooc_fw.data.labels import are_missing, encode_labels, iter_labels, renamed
from ooc_fw.data.rows import AnyArray, Int64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.data.structure import linked_files
from ooc_fw.data.views import SubsetSource, draw_parts
from ooc_fw.options import SHARE, ConvertOptions, Option, TrainOptions, option_fields
from ooc_fw.system.errors import DamageError, InputError

logger = logging.getLogger(__name__)


def open_dataset(
    data: Any,
    labels: Any = None,
    *,
    x_name: str | None = None,
    label: str | None = None,
    missing_labels: str = "refuse",
    fill_missing: Any = None,
    like: Mapping[str, str] = MappingProxyType({}),
) -> RowSource:
    """Open labelled rows in any kind of storage, without loading them.

    Parameters
    ----------
    data : path, array or RowSource
        Path of HDF5, AnnData, zarr or .npy; array of numpy, scipy.sparse, h5py, zarr or Dask, or a
        group with rows in it; AnnData object. A `RowSource` is returned as it is.
    labels : path of a .npy file, array (in RAM, of h5py, zarr or Dask) or name, optional
        One label for each row of the user's own input, instead of the labels in the file: rows of a
        converted file may be shuffled, or a part of the input. A name selects labels in `data`.
    x_name, label : str, optional
        Names of rows and labels in an HDF5 file, a zarr store or an AnnData object: those of `like`
        by default, else "X" and "y". They are paths such as "layers/counts", "obsm/X_pca" and
        "obs/cell_type"; "obs/" may be left out.
    missing_labels : {"refuse", "drop"}
        Whether a row without a label is an error or is left out.
    fill_missing : 0, optional
        With 0, features of a model that the rows lack count as 0; by default this is an error.
    like : mapping
        The `origin` of the training rows. Labels that the file did not rename are renamed like
        theirs (``convert --labels-as``).

    Returns
    -------
    RowSource
        Close it, or use it in a ``with`` statement.

    Examples
    --------
    >>> import numpy as np
    >>> with open_dataset(np.eye(3), labels=[1, -1, 1]) as source:
    ...     source.n_rows, source.read(0, 1)
    (3, array([[1., 0., 0.]], dtype=float32))
    """
    if isinstance(data, RowSource):
        if not (labels is x_name is label is None):
            raise InputError(f"{data.name} is open already; give the labels where it is opened")
        return data
    declared = option_fields(ConvertOptions)
    options: dict[str, Any] = {"x_name": x_name, "label": label}
    options["fill_missing"] = None if fill_missing is None else str(fill_missing)
    for option, value in {**options, "missing_labels": missing_labels}.items():
        options[option] = None if value is None else declared[option].check(option, value)
    x_name, label = options["x_name"], options["label"]
    if labels is not None and label is not None:
        raise InputError("--label and --labels contradict each other; leave one of them out")
    name = None
    data, labels = containers.without_column(data, labels)
    if isinstance(labels, str) and not labels.endswith(".npy") and not os.path.exists(labels):
        name = label = labels  # it is the name of labels in the data
        labels = None
    # A converted file has its rows and labels at the last of these places.
    x_names = (x_name,) if x_name else (like.get("x_name", "X"), "X")
    rows = {name for name in (x_name, like.get("x_name")) if name}
    # Other rows may have other labels, but all matrices of AnnData have those in obs.
    is_like = len(rows) < 2 or all(re.fullmatch("X|(layers|obsm)/[^/]+", name) for name in rows)
    y_names = (label,) if label else (like.get("label", "y") if is_like else "y", "y")
    given = None if labels is None else _open_labels(labels)
    with ExitStack() as after_error:
        source = after_error.enter_context(_open(data, x_names, y_names if given is None else ()))
        if given is not None:
            paths = {os.path.realpath(path) for path in (path_of(labels), source.name)}
            if "row" in source.beside and len(paths) == 1:  # they have the order of the file
                raise InputError(f"the labels are in {source.name} itself; give their name")
            source.label_rows(source.by_row(given, "labels"))
        if name is not None and not source.has_labels:
            raise InputError(f"{name!r} is neither a file of labels nor a name in {source.name}")
        if source.has_labels and "labels_as" in {*like} - {*source.origin}:
            new = like["labels_as"]
            source.label_rows(renamed(source.beside["y"], new), labels_as=new)
        if missing_labels == "drop" and source.has_labels:
            missing = np.concatenate([are_missing(labels) for _, labels in iter_labels(source)])
            if missing.all():
                raise InputError(f"no row of {source.name} has a label; name the labels (--label)")
            if missing.any():
                labelled = SubsetSource(source, np.flatnonzero(~missing))
                labelled.callback(source.close)
                source = labelled
        source.fills_missing = fill_missing is not None
        after_error.pop_all()
    return source


def warn_of_origin(source: RowSource, origin: Mapping[str, str]) -> None:
    """Warn if the rows have another name in their file than the training rows of this `origin`."""
    names = source.origin.get("x_name"), origin.get("x_name")
    if None not in names and names[0] != names[1]:
        words = "the rows of %s are its %s, but the training rows were %s; see --x-name"
        logger.warning(words, source.name, *names)


def input_files(inputs: Iterable[Any]) -> list[str]:
    """Names of the files of inputs, and of those to which HDF5 files among them link."""
    names = [one.name if isinstance(one, RowSource) else one for one in inputs]
    files = [os.fspath(name) for name in names if isinstance(name, str | os.PathLike)]
    linking = [name for name in files if os.path.isfile(name) and h5py.is_hdf5(name)]
    return [*files, *chain.from_iterable(map(linked_files, linking))]


def _open(data: Any, *names: tuple[str, ...]) -> RowSource:
    """Open rows, with the names for `open_container`."""
    if isinstance(data, str | os.PathLike):
        return _open_path(os.fspath(data), *names)
    if is_annotated(data):
        return open_container(parts_of(data), *names)
    if containers.is_group(data):
        return open_container(data, *names)
    if len(names[0]) == 1:
        raise InputError(f"{path_of(data)} is one array, without x_name; leave out --x-name")
    return open_rows(data)


def _open_path(path: str, *names: tuple[str, ...]) -> RowSource:
    """Open rows in a file or store."""
    kind = _kind_of(path)
    if kind == "npy":
        source = open_rows(open_npy(path))
    elif kind == "zarr":
        with formats.reading(path):
            import zarr

            root = zarr.open(path, mode="r")
        source = _open(root, *names)
    else:
        linked_files(path)  # HDF5 must come to an end
        with ExitStack() as resources:
            root = containers.open_file(path)
            resources.callback(containers.close_file, root)
            source = open_container(root, *names)
            source.callback(resources.pop_all().close)
    source.name = path
    seen = tuple(stamp for root in source.roots() for stamp in root.stamps.values())
    source.recipe = _reopen, (os.path.abspath(path), seen, *names)
    return source


@functools.lru_cache(maxsize=16)
def _reopen(path: str, seen: tuple[Any, ...], *names: tuple[str, ...]) -> RowSource:
    """Open a file again in another process; all tasks there share the source."""
    source = _open_path(path, *names)
    if source.recipe != (_reopen, (path, seen, *names)):
        source.close()
        raise InputError(
            f"{source.name} is not the file it was when the work began; start again, and give all "
            f"machines the same file, or copies of equal size and time of change (cp -p)"
        )
    return source


def _kind_of(path: str) -> str:
    """Kind of a file of rows: "hdf5", "npy" or "zarr"; InputError for other files."""
    kind = formats.detect_format(path)
    if kind in ("hdf5", "npy", "zarr"):
        return kind
    if kind in formats.TABLES:  # only the user knows the column of the labels
        raise InputError(
            f"{path} is a table; convert it first: {conversion(path)} --label COLUMN; for a model, "
            f"convert it like the training data, with --like TRAIN.h5"
        )
    formats.check_regular(path)
    head = formats.read_head(path)
    if formats.format_of(head) is None and (not head or b"\0" in head):
        raise DamageError(
            f"{path} is neither HDF5 nor .npy, or it is empty or damaged; use ooc-fw convert"
        )
    raise InputError(f"{path} is LIBSVM text; convert it first: {conversion(path)}")


def conversion(path: str) -> str:
    """The command that converts a file."""
    name = Path(path).name
    target = f"{name.split('.')[0].lstrip('-') or 'data'}.h5"  # "-" begins an option
    target = target if target != name else f"converted-{target}"
    return shlex.join(["ooc-fw", "convert", path, target])


def _open_labels(labels: Any, what: str = "labels") -> Sliceable:
    """Open labels from outside the data, or groups: the path of a .npy file, or any array."""
    if isinstance(labels, str | os.PathLike):
        path = os.fspath(labels)
        if formats.format_of(formats.read_head(path)) != "npy":
            raise InputError(f"the {what} {path} must be a .npy file; write them with numpy.save")
        return labels_in(open_npy(path), path)
    return labels_in(labels, f"the {what} in {path_of(labels)}")


@contextmanager
def borrow_source(
    X: Any,
    labels: Any = None,
    columns: Sequence[str] | None = None,
    **how: Any,
) -> Iterator[RowSource]:
    """Source of `X`, with these names of features; closed afterwards unless `X` itself is one."""
    source = open_dataset(X, labels, **how)
    if columns is not None:
        source.columns = columns
    with nullcontext() if source is X else source:
        yield source


def train_test_split(
    data: Any,
    test_share: float | str = 0.3,
    seed: int = 0,
    *,
    labels: Any = None,
    stratify: bool = False,
    groups: Any = None,
) -> tuple[SubsetSource, SubsetSource]:
    """Split rows into two random parts, without loading or copying them.

    If the file is marked as shuffled, the test part is one run of consecutive rows, which may
    continue at row 0. For other data it is a random choice of single rows.

    Parameters
    ----------
    data, labels
        As for `open_dataset`.
    test_share : float or text such as "30%"
        Share of the rows in the test part, between 0 and 1.
    seed : int
        The same seed gives the same parts.
    stratify : bool
        Whether each class has the same share in both parts.
    groups
        The group of each row, such as a patient: as for `labels`. Each group is in one part.

    Returns
    -------
    train, test : SubsetSource
        Each row is in one of the parts, in the order of the file. The file is closed when both
        parts are out of use.

    Examples
    --------
    >>> import numpy as np
    >>> train, test = train_test_split(np.eye(10), 0.3, labels=np.arange(10) % 2)
    >>> train.n_rows, test.n_rows
    (7, 3)
    """
    if isinstance(test_share, str) and not test_share[:1].isdigit():
        raise InputError(f"test_share must be a number; give labels as labels={test_share!r}")
    source = open_dataset(data, labels)
    _, codes = read_groups(source, groups)
    rows = draw_test_rows(source, test_share, seed, stratify=stratify, groups=codes)
    return hold_out(source, rows)


def read_groups(source: RowSource, groups: Any) -> tuple[AnyArray, Int64Array | None]:
    """Different groups in increasing order, and the place of each row's group; None without any.

    Groups are given as labels are: an array, a .npy file, or a name in the file of the source.
    """
    if groups is None:
        return np.empty(0), None
    if isinstance(groups, str) and os.path.exists(source.name) and not os.path.exists(groups):
        if "row" in source.beside and source.scaling is not None:  # it has rows and labels only
            raise InputError(
                f"{source.name} is a converted file, without {groups!r}: give a .npy file with the "
                f"groups of the rows of its input, or --groups FILE:COLUMN for that input"
            )
        with open_dataset(source.name, groups, like=source.origin) as named:
            given: Sliceable = named.labels(0, named.n_rows)
    else:
        given = _open_labels(groups, "groups")
    values = np.asarray(source.by_row(given, "groups")[0 : source.n_rows])
    if are_missing(values).any():
        raise InputError(
            f"the group of row {are_missing(values).argmax()} of {source.name} is missing; give "
            f"each row a group, or leave the row out"
        )
    names, codes = np.unique(values, return_inverse=True)
    return names, codes


def draw_test_rows(
    source: RowSource,
    test_share: float | str,
    seed: int,
    *,
    stratify: bool,
    groups: Int64Array | None = None,
) -> Int64Array:
    """Draw the rows of the test part of `train_test_split`."""
    share: float = Option(None, **SHARE).check("test_share", test_share)
    n_test = round(share * source.n_rows)
    if not 0 < n_test < source.n_rows:
        raise InputError(
            f"a share of {test_share} of the {source.n_rows} rows of {source.name} leaves one part "
            f"empty; choose another share"
        )
    codes = encode_labels(source)[1] if stratify else None
    rng = np.random.default_rng(TrainOptions(seed=seed).seed)
    (rows,) = draw_parts(source.n_rows, [n_test], source.shuffled is True, rng, codes, groups)
    return rows
