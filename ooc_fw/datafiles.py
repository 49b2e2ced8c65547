"""`convert` and `split`, which write data files; the commands of these names call them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ooc_fw.conversion.convert import ConversionReport, convert_files, read_grouping
from ooc_fw.conversion.readers import Progress
from ooc_fw.conversion.writer import write_parts
from ooc_fw.data.opening import borrow_source, draw_test_rows, input_files
from ooc_fw.data.structure import is_data, is_model
from ooc_fw.options import ConvertOptions
from ooc_fw.system.files import Output, StrPath, check_outputs


def convert(
    inputs: StrPath | Sequence[StrPath],
    output: StrPath,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> ConversionReport:
    r"""Convert text, tables or arrays to a data file, in memory that does not depend on their size.

    The file has the rows in random order, scaled as the options say. It replaces `output` as a
    whole after success.

    Parameters
    ----------
    inputs : path or sequence of paths
        LIBSVM text, CSV, Parquet, Arrow, folders of such files, .npy, HDF5, AnnData or zarr, all of
        one format; "-" is standard input.
    output : path
        The HDF5 file to write.
    progress : callable, optional
        Called with the bytes that are done, and their total or None.
    **options
        The options of ``ooc-fw convert`` by their names in Python: ``label="city"``,
        ``scale="standard"``, ``one_hot=["job"]``, ``shuffle=False``, and ``like``, a data file or a
        model whose columns, categories and scaling are used again.

    Returns
    -------
    ConversionReport
        With the attributes n_rows, n_features, class_counts, scaling, notes and others.

    Raises
    ------
    InputError
        If an option, input, column or row cannot be used; the message names it.
    OSError
        If the disk is full or fails.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     lines = "size,kind\n1,small\n2,small\n9,large\n"
    ...     _ = Path(folder, "a.csv").write_text(lines)
    ...     convert(f"{folder}/a.csv", f"{folder}/a.h5", label="kind").class_counts
    {'large': 1, 'small': 2}
    """
    chosen = ConvertOptions(**options)
    like = None
    if chosen.like is not None and is_model(Path(chosen.like)):
        from ooc_fw.model.prediction import training_file  # takes 0.05 s, and few runs need it
        from ooc_fw.model.record import load_model

        name = os.fspath(chosen.like)
        like = training_file(load_model(name), name)
    paths = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    return convert_files(paths, output, chosen, like, progress=progress)


def split(
    data: Any,
    train: StrPath,
    test: StrPath,
    *,
    test_share: float | str = 0.3,
    seed: int = 0,
    groups: Any = None,
    compression: str = "none",
    **reading: Any,
) -> list[dict[str, Any]]:
    """Write the rows of a data set to a training file and a test file.

    Test rows are a random part with the same share of each class. Both files keep the order and the
    scaling of the rows.

    Parameters
    ----------
    data
        Anything `open_dataset` takes, such as the path of a data file.
    train, test : path
        The files to write.
    test_share : float or text such as "30%"
        Share of the rows in the test file.
    seed : int
        The same seed gives the same parts.
    groups : array, path or name, optional
        The group of each row, such as a patient; each group is in one file. As for
        `train_test_split`, or text such as "visits.csv:patient", a column of the input of `data`.
    compression : {"none", "gzip"}
        Whether the files are compressed.
    **reading
        How `data` is opened, as for `open_dataset`: labels, label, x_name, missing_labels.

    Returns
    -------
    list of two dicts
        About each file: output, n_rows, targets (whether labels are those of a regression),
        class_counts, and with `groups` their names.

    Raises
    ------
    InputError
        If the data cannot be read, or if a part would be empty.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     names = f"{folder}/train.h5", f"{folder}/test.h5"
    ...     parts = split(np.eye(10), *names, labels=np.arange(10) % 2, test_share=0.2)
    >>> [part["class_counts"] for part in parts]
    [{0.0: 4, 1.0: 4}, {0.0: 1, 1.0: 1}]
    """
    outputs = [Output("training file", train, is_data), Output("test file", test, is_data)]
    named = [groups, groups.rpartition(":")[0]] if isinstance(groups, str) else []
    files = [name for name in named if os.path.exists(name)]
    check_outputs(outputs, input_files([data, reading.get("labels"), *files]))
    how = ConvertOptions(compression=compression)
    with borrow_source(data, **reading) as source:
        stratify = source.has_labels and not source.targets
        names, codes = read_grouping(source, groups)
        rows = draw_test_rows(source, test_share, seed, stratify=stratify, groups=codes)
        parts = write_parts(source, rows, [train, test], how.compression)
    if codes is not None:
        for part, own in zip(parts, [np.delete(codes, rows), codes[rows]], strict=True):
            part["groups"] = names[np.unique(own)].tolist()
    return parts
