"""Rows and labels in arrays (HDF5, .npy, zarr, AnnData), whose columns are all features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_fw.conversion import readers
from ooc_fw.conversion.readers import ParsedBlock, Reader, are_wrong
from ooc_fw.conversion.tables import TrainingFile, collect_words
from ooc_fw.data.labels import are_missing, check_labels, typed
from ooc_fw.data.opening import open_dataset, warn_of_origin
from ooc_fw.data.rows import CSRRows, narrow_type, take_rows
from ooc_fw.data.sources import RowSource, block_slices
from ooc_fw.data.views import ColumnSource, feature_places
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError


class ArrayInput(Reader):
    """The rows and labels of a file that `open_dataset` can open."""

    def __init__(self, path: str, options: ConvertOptions, origin: Mapping[str, str]) -> None:
        super().__init__(path)
        self.source: RowSource = self.enter_context(
            open_dataset(
                path,
                options.labels,
                x_name=options.x_name,
                label=options.label,
                like={name: known for name, known in origin.items() if name != "labels_as"},
            )
        )
        if self.source.scaling is not None:
            self.close()
            raise InputError(
                f"{path} is a converted file already: use it as it is; to change it, or to join "
                f"it with more rows, convert its input again, together with theirs"
            )
        self.size = self.source.decoded_bytes

    def blocks(self) -> Iterator[tuple[int, Any, Any]]:
        """Yield the first row of a block, its rows, and their labels or None."""
        source = self.source
        for start, stop in block_slices(source, 0, source.n_rows, readers.BLOCK_BYTES):
            rows: Any = source.read(start, stop, exact=True, checked=False)
            labels = typed(source.labels(start, stop), self.name) if source.has_labels else None
            self.text_bytes = int(source.decoded_bytes * stop // source.n_rows)
            yield start, rows, labels


class ArrayEncoder(readers.Encoder):
    """Makes rows from arrays of equal width; with `like`, from its columns, by name or place."""

    def __init__(
        self,
        inputs: Sequence[ArrayInput],
        options: ConvertOptions,
        like: TrainingFile | None,
        labels: readers.LabelNumbers,
    ) -> None:
        self.labels = labels
        self.labelled = all(one.source.has_labels for one in inputs)
        first = inputs[0].source
        for one in inputs if like is None else ():
            one.source.labels(0, 0)  # an error without labels
        types = [one.source.labels(0, 0).dtype for one in inputs if self.labelled]
        if any(dtype.kind not in "biuf" for dtype in types):
            self.labels.keep_words()
        self._log1p = options.log1p if like is None else like.scaling.log1p
        if not self._log1p:  # logarithms at each read would take longer than the reading
            self.dtype = narrow_type(np.result_type(*(one.source.dtype for one in inputs)))
        self._targets = options.targets
        self._drops = options.missing_labels == "drop"
        self.columns = first.columns if like is None else like.columns
        self.origin = first.origin
        self._width = first.n_features if like is None else like.n_features
        for one in inputs:
            warn_of_origin(one.source, self.origin if like is None else like.origin)
            fills = options.fill_missing is not None
            places = feature_places(one.source.columns, self.columns, one.name, fills=fills)
            if places is not None:
                one.source = ColumnSource(one.source, places)
            if one.source.n_features != self._width:
                raise InputError(
                    f"{one.name} has {one.source.n_features} columns and "
                    f"{first.name if like is None else like.name} has {self._width}; give rows "
                    f"with as many, in the same order"
                )

    def parse(self, reader: Reader, block: tuple[int, Any, Any]) -> ParsedBlock:  # noqa: D102
        start, rows, labels = block
        kept = np.arange(len(rows))
        n_left_out = 0
        if self.labelled and self._drops and (missing := are_missing(labels)).any():
            kept = np.flatnonzero(~missing)
            n_left_out = len(rows) - len(kept)
            rows = take_rows(rows, kept)
            labels = labels[kept]

        def place(row: int) -> str:
            return f"{reader.name}, row {start + kept[row]}"

        if not isinstance(rows, CSRRows):
            rows = CSRRows.from_dense(rows.astype(np.float64))
        rows = replace(rows, data=rows.data.astype(np.float64, copy=False))
        wrong = np.flatnonzero(are_wrong(rows.data, self._log1p))
        if len(wrong):
            k = int(wrong[0])
            raise InputError(
                f"{place(rows.row_numbers()[k])}: the value in "
                f"{self.column_name(rows.indices[k])} is "
                f"{readers.fault_of(rows.data[k])}; replace it"
            )
        if not self.labelled:
            labels = np.zeros(len(rows))
        elif not self._targets:
            check_labels(labels, start, reader.name)
            values, codes = np.unique(labels, return_inverse=True)
            labels = self.labels.of(collect_words(values.tolist(), codes, place))
        elif labels.dtype.kind not in "biuf" or not np.isfinite(labels).all():
            raise InputError(f"{reader.name} has targets that are not finite numbers; correct them")
        return ParsedBlock(labels, rows, self._width, n_unlabelled=n_left_out, kept=kept)

    def column_name(self, column: int) -> str:  # noqa: D102
        return f"column {str(column if self.columns is None else self.columns[column])!r}"
