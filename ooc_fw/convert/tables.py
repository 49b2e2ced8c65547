"""How the columns of a table become features: chosen, fitted, recorded in the output, applied.

By the record, a test file gets the features of its training file.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.convert import readers
from ooc_fw.convert.encoding import TargetEncoding
from ooc_fw.convert.readers import NUMBERS, ParsedBlock, TableReader, Wanted, Words, listed
from ooc_fw.data import formats, hdf5
from ooc_fw.data.converted import CONTENT, LABELS_AS, content_crc32, read_checksums
from ooc_fw.data.encoded import NO_WORD, Encoding
from ooc_fw.data.labels import (
    MISSING_LABELS,
    are_label,
    are_numbers,
    feature_places,
    is_label_number,
    plain_word,
)
from ooc_fw.data.rows import (
    CSRRows,
    Float64Array,
    Int64Array,
    append_columns,
    keep_stored,
    take_columns,
    take_rows,
)
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.statistics import ColumnRanges
from ooc_fw.data.stores import feature_names
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import DamageError, InputError

MAX_CATEGORIES = 4096  # different words; a column with more holds names or numbers

logger = logging.getLogger(__name__)

_TOO_MANY = f"has more than {MAX_CATEGORIES} words, or more than {readers.MAX_NAME} letters in one"
_TRUTH = {"True": "1", "False": "0"}  # as numbers
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class TableRecord:
    """How the columns of a table become features."""

    label: str  # column of the labels
    columns: tuple[str, ...]  # columns that are used, in order
    # Categories of each column, sorted; None for a column of numbers.
    categories: tuple[tuple[str, ...] | None, ...]
    # What a missing number of each column becomes (0 for categories); None when it is an error.
    means: tuple[float, ...] | None = None
    header: bool = True  # whether the columns had names of their own
    dates: tuple[str, ...] = ()  # columns of dates, the last of those of numbers
    encodings: Mapping[str, Encoding] = field(default_factory=dict)  # of more columns
    width: int | None = None  # columns of the table, which have no names

    @cached_property
    def is_hot(self) -> npt.NDArray[np.bool_]:
        """Which columns are of categories."""
        return np.array([words is not None for words in self.categories], dtype=bool)

    @property
    def hot(self) -> tuple[str, ...]:
        """Columns of categories."""
        return tuple(compress(self.columns, self.is_hot))

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns of numbers."""
        return tuple(compress(self.columns, ~self.is_hot))

    @property
    def columns_of_features(self) -> list[tuple[str, str]]:
        """Name of each feature, and its column; those that are target-encoded are the last."""
        pairs = zip(self.columns, self.categories, strict=True)
        found = [
            (column if word is None else f"{column}={word}", column)
            for column, words in pairs
            for word in ((None,) if words is None else words)
        ]
        encodings = self.encodings.items()
        return found + [(name, column) for column, one in encodings for name in one["features"]]

    @property
    def features(self) -> list[str]:
        """Name of each feature."""
        return [name for name, _ in self.columns_of_features]

    def to_json(self) -> str:
        """Write the record, without dates and encodings if it has none."""
        stored = asdict(self)
        for name in ("dates", "encodings", "width"):
            if not stored[name]:
                del stored[name]
        return json.dumps(stored)

    @staticmethod
    def from_json(
        text: str, name: str, features: Sequence[str] | None, n_features: int
    ) -> TableRecord:
        """Read the JSON of a record in the file `name`; DamageError if it makes other features."""
        try:
            stored = json.loads(text)
            means = stored["means"]
            record = TableRecord(
                stored["label"],
                tuple(stored["columns"]),
                tuple(None if words is None else tuple(words) for words in stored["categories"]),
                None if means is None else tuple(map(float, means)),
                bool(stored.get("header", True)),
                tuple(stored.get("dates", ())),
                stored.get("encodings", {}),
                stored.get("width"),
            )
            if not {*record.dates} <= {*record.columns}:
                raise ValueError("dates are in other columns")
            named = record.features if features is None else list(features)
            if record.features != named or len(named) != n_features:
                raise ValueError("the features are others")
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DamageError(
                f"{name} is damaged: what it says of the columns of its table makes no sense "
                f"({error}); restore a copy or write it again"
            ) from None
        return record

    def _check_width(self, reader: TableReader, label: str | None, first: str) -> None:
        """Raise InputError for more or fewer columns than those of a training file without names.

        New rows may lack a last column of labels.
        """
        places = [name for name in reader.columns if name != reader.own_label]
        if self.width is None or not are_numbers(places):
            return
        n_wanted = self.width
        if self.label == str(n_wanted - 1):
            is_apart = label is not None and label == reader.own_label
            n_wanted -= is_apart or (label is None and len(places) == n_wanted - 1)
        check_width(reader, len(places), first, n_wanted)

    def wanted(self, reader: TableReader, label: str | None, first: str, like: str = "") -> Wanted:
        """Columns to read from a table; InputError if it lacks some, or they have other types.

        Messages name the table `first`, or the training file or model `like`.
        """
        numbers = self.numbers[: len(self.numbers) - len(self.dates)]
        wanted = Wanted(label, numbers, (*self.hot, *self.encodings), self.dates)
        self._check_width(reader, label, like or first)
        needed = [*self.columns, *self.encodings]
        labels = [] if label is None else [label]
        if missing := [repr(name) for name in needed + labels if name not in reader.kinds]:
            other = f"{like} needs" if like else f"{first} has"
            raise InputError(
                f"{reader.name} lacks column{'s' * (len(missing) > 1)} {listed(missing)}, which "
                f"{other}; it has {listed(reader.columns)}: add or rename what is missing"
            )
        needs = dict.fromkeys(numbers, "numbers") | dict.fromkeys(wanted.words, "words")
        for name in needed:
            kind = reader.kinds[name]
            what, fits = needs.get(name, "dates"), readers.may_be_dates(kind)
            if like and kind == readers.NULLS:
                fits = True  # all of its values are missing
            elif what == "words":
                fits = kind in readers.USABLE
            elif what == "numbers":
                fits = kind in (readers.NUMBERS, readers.BOOLEANS, readers.TEXT)
            if not fits:
                way = f"{readers.spreading(kind, name)}leave it out with --drop {name}"
                if kind == readers.WORDS:
                    way = f"give --one-hot {name} for categories, or {way}"
                elif what == "dates":
                    way = "leave it out of --dates"
                elif what == "numbers" and readers.may_be_dates(kind):
                    way = f"give --dates {name} for seconds since 1970, or {way}"
                raise InputError(
                    f"column {name!r} of {reader.name} holds {kind}, not {what}; "
                    f"{f'{like} needs {what} there' if like else way}"
                )
        return wanted


@dataclass(frozen=True)
class TrainingFile:
    """What the conversion of a test file takes from its training file, or from a model."""

    name: str  # the file, for messages
    n_features: int  # its width
    sparse: bool  # whether its rows are sparse
    scaling: Scaling  # what was done to its values
    classes: tuple[Any, ...] | None = None  # its labels; None where they are unknown
    columns: Sequence[str] | None = None  # names of its features
    record: TableRecord | None = None  # how a table became its features
    targets: bool = False  # whether its labels are targets of a regression
    is_model: bool = False  # whether it is a model
    labels_as: tuple[str, ...] = ()  # maps that made its labels

    @property
    def words(self) -> tuple[str, ...]:
        """Labels that are words."""
        return tuple(name for name in self.classes or () if isinstance(name, str))


def read_like(path: str) -> TrainingFile:
    """Read a converted file, an HDF5 file with rows, or a model; InputError if it is damaged."""
    if not (os.path.isfile(path) and formats.is_hdf5(path)):
        raise InputError(
            f"{path} does not exist, is damaged, or is neither a converted file nor a model; "
            f"--like takes what ooc-fw convert and train make"
        )
    with hdf5.structure_errors(path), hdf5.open_file(path) as file:
        return _read_training_file(file)


def _read_training_file(file: h5py.File) -> TrainingFile:
    path, from_model = file.filename, hdf5.is_model(file)
    # A model has in data sets what a data file has in attributes.
    stored = file if from_model else file.attrs
    rows = _checked_rows(file, from_model)
    sparse = isinstance(rows, h5py.Group)
    n_features = int((rows.attrs["shape"] if sparse else rows.shape)[1])
    scaling = Scaling.read(file)
    if scaling is None and from_model:
        raise InputError(
            f"{path} is a model that does not know how its training data were scaled; give the "
            f"converted training file with --like"
        )
    columns: Sequence[str] | None = formats.get_texts(stored, formats.COLUMNS)
    record = None
    if formats.RECORD in stored:
        kept = stored[formats.RECORD]
        text = kept[...].tobytes().decode() if from_model else formats.as_text(kept)
        record = TableRecord.from_json(text, path, columns, n_features)
    if columns is None:
        columns = feature_names(file, "X", n_features)
    targets = "spread" in file.attrs if from_model else bool(file.attrs.get(formats.TARGETS, False))
    labels = None if from_model else hdf5.find_node(file, "y")
    names = None if labels is None else formats.get_texts(labels.attrs, formats.LABEL_NAMES)
    if names is None:
        names = file.attrs.get("class_names")
    classes = None
    if names is not None and not targets:
        texts = (name.decode("utf-8") if isinstance(name, bytes) else name for name in names)
        classes = tuple(name if isinstance(name, str) else float(name) for name in texts)
    scaling = scaling or Scaling()
    owner: Any = file if from_model else {} if labels is None else labels.attrs
    maps = tuple(formats.get_texts(owner, LABELS_AS) or ())
    return TrainingFile(
        path, n_features, sparse, scaling, classes, columns, record, targets, from_model, maps
    )


def _checked_rows(file: h5py.File, from_model: bool) -> Any:
    """Rows of a data file, or support vectors; InputError where it is unfinished or damaged."""
    path = file.filename
    if from_model:
        try:
            hdf5.check_plain_tree(file)
        except InputError as error:
            raise DamageError(f"{path} is no model of ooc-fw: {error}; restore a copy") from None
        if CONTENT in file.attrs and content_crc32(file) != int(file.attrs[CONTENT]):
            raise InputError(f"{path} is damaged: it does not match its checksum; restore a copy")
        return file["support_vectors"]
    if "format_version" in file.attrs and file.attrs.get("complete") != 1:
        raise InputError(f"{path} is an unfinished conversion; convert it again")
    rows = hdf5.find_node(file, "X")
    if rows is None:
        raise InputError(f"{path} has no /X; --like takes a file made by ooc-fw convert")
    read_checksums(file)  # they also cover scaling and width
    return rows


def check_width(reader: TableReader, n_columns: int, training: str, n_wanted: int) -> None:
    """Raise InputError unless columns that are known by their place are as many as in training."""
    if n_columns != n_wanted:
        raise InputError(
            f"{reader.name} has {n_columns} columns and {training} has {n_wanted}; without names "
            f"they are known by their place: give rows with as many, in the same order"
        )


def find_column(reader: TableReader, name: str, option: str) -> str:
    """Column by its name or number; negative numbers count from the last, without an index."""
    if name in reader.kinds:
        return name
    try:
        place = int(name)
        return (reader.proper_columns if place < 0 else reader.columns)[place]
    except (ValueError, IndexError):
        known = listed((*reader.label_names, *reader.columns)) or "no columns with names"
        raise InputError(
            f"{option}: {reader.name} has no column {name!r}; it has {known}"
        ) from None


def find_label(reader: TableReader, wanted: str | None) -> str:
    """Column of the labels; InputError if there is none, or it cannot hold labels."""
    label = reader.own_label if wanted is None else find_column(reader, wanted, "--label")
    if label is None:
        hint = " or --labels FILE.npy" if reader.takes_label_file else ""
        raise InputError(
            f"{reader.name} is a table: name the column of its labels with --label{hint} (it has "
            f"{listed(reader.label_names or reader.proper_columns) or 'none'})"
        )
    if reader.kinds[label] not in readers.USABLE:
        raise InputError(
            f"the labels in column {label!r} of {reader.name} are of type "
            f"{reader.kinds[label]}; write them as numbers or words"
        )
    return label


def choose_columns(
    reader: TableReader, options: ConvertOptions, like: TrainingFile | None = None
) -> TableRecord:
    """Features of a table by the options alone, before its categories are known.

    With `like`, those of that training file: by name, or by their order if it has no names.
    """
    label = find_label(reader, options.label)
    drop = {find_column(reader, name, "--drop") for name in options.drop} | {reader.own_label}
    uses: dict[str | None, str] = dict.fromkeys(drop, "--drop") | {label: "--label"}

    def columns_of(names: Sequence[str], option: str) -> set[str]:
        found = {find_column(reader, name, option) for name in names}
        for name in found:
            if uses.setdefault(name, option) != option:
                raise InputError(
                    f"column {name!r} is named by {option} and by {uses[name]}; choose one"
                )
        return found

    hot = columns_of(options.one_hot, "--one-hot")
    encoded = columns_of(options.target_encode, "--target-encode")
    seconds = columns_of(options.dates, "--dates")
    dates = tuple(name for name in reader.columns if name in seconds)
    left_out = {*uses} - hot | (reader.index - {*uses})
    columns = tuple(name for name in reader.columns if name not in left_out)
    if like is not None:
        places = feature_places(columns, like.columns, reader.name)
        if places is not None:
            columns = tuple(columns[place] for place in places.tolist())
        elif like.columns is not None or len(columns) > like.n_features:
            # LIBSVM text, which has no names, may lack columns that are zeros at its end.
            check_width(reader, len(columns), like.name, like.n_features)
        return TableRecord(label, columns, (None,) * len(columns))
    columns = (*columns, *dates)
    empty: Encoding = {"words": (), "features": {}}
    encodings = {name: empty for name in reader.columns if name in encoded}
    if not (columns or encodings):
        raise InputError(f"{reader.name} has no column left for features; drop fewer")
    categories = tuple(() if name in hot else None for name in columns)
    width = None if reader.header else len(reader.columns)
    return TableRecord(label, columns, categories, None, reader.header, dates, encodings, width)


def fit_record(
    inputs: Sequence[str],
    open_input: Callable[[str], TableReader],
    record: TableRecord,
    options: ConvertOptions,
    on_bytes: Callable[[int], None],
) -> TableRecord:
    """Find the categories of a record, and means if wanted, in one pass over the inputs."""
    # Standard input and pipes cannot.
    if not all(
        os.path.isfile(path) or formats.is_folder(path) or formats.is_url(path) for path in inputs
    ):
        raise InputError(
            "--one-hot and --impute need two passes over the table, and standard input or a pipe "
            "can be read only once; save it to a file"
        )
    words: dict[str, set[str]] = {name: set() for name in record.hot}
    # Without means, errors in numbers are found when all is parsed.
    numbers = record.numbers if options.impute is not None else ()
    sums, counts = np.zeros(len(numbers)), np.zeros(len(numbers), dtype=np.int64)
    done = n_rows = 0
    for path in inputs:
        with open_input(path) as reader:
            wanted = replace(record.wanted(reader, record.label, inputs[0]), words=record.hot)
            reader.choose(wanted if numbers else replace(wanted, numbers=(), dates=()))
            for cells in readers.ordered_map(reader.parse, reader.blocks()):
                for (name, known), column in zip(words.items(), cells.words, strict=True):
                    known.update(column.values)
                    longest = max(map(len, column.values), default=0)
                    if longest > readers.MAX_NAME or len(known) > MAX_CATEGORIES:
                        raise _useless_column(name, reader, _TOO_MANY)
                assert not isinstance(cells.numbers, CSRRows)
                # A mean of values that will be refused would itself be refused, elsewhere.
                there = _can_be_taken(cells.numbers, options.log1p)
                sums += np.sum(cells.numbers, axis=0, where=there)
                counts += there.sum(axis=0)
                n_rows += len(cells.labels)
                on_bytes(done + reader.bytes_read)
            done += reader.size or 0
    if not n_rows:
        raise InputError(f"{', '.join(inputs)} has no rows; {TableEncoder.hint}")
    if options.impute is not None:
        for name, count in zip(record.numbers, counts, strict=True):
            if count == 0:
                raise _useless_column(name, reader, "holds no number at all that can be taken")
        means = np.zeros(len(record.columns))
        means[~record.is_hot] = sums / counts
        record = replace(record, means=tuple(means.tolist()))
    found = (tuple(sorted(words[name])) if name in words else None for name in record.columns)
    return replace(record, categories=tuple(found))


def _can_be_taken(values: npt.NDArray[Any], log1p: bool) -> npt.NDArray[np.bool_]:
    """Which values float32 can hold, and have a logarithm if that is wanted."""
    fine: npt.NDArray[np.bool_] = np.abs(values) <= _FLOAT32_MAX
    return fine & (values > -1) if log1p else fine


def _useless_column(name: str, reader: TableReader, reason: str) -> InputError:
    return InputError(f"column {name!r} of {reader.name} {reason}; leave it out with --drop {name}")


class TableEncoder(readers.Encoder):
    """Makes rows of open tables, by a record, or of one array of sparse rows without.

    `labels` says what blocks have: "codes" of labels that are words, or the "words" as they stand
    in the table, or no labels ("none"), whose column is then not read.
    """

    hint = "give a table with rows in it"

    def __init__(
        self,
        inputs: Sequence[TableReader],
        record: TableRecord | None,
        options: ConvertOptions,
        parsing: readers.ParseOptions,
        like: TrainingFile | None = None,
        *,
        labels: Literal["codes", "words", "none"] = "codes",
    ) -> None:
        super().__init__(() if like is None else like.words)
        self.record = record
        self._label_form = labels
        self._options = parsing
        self._like = like
        self._missing_labels = options.missing_labels
        self._targets = options.targets
        self._readers = inputs
        self._names = inputs[0].feature_names if like is None else like.columns
        if record is not None:
            self._take(record)
            if record.encodings:
                self.encoding = TargetEncoding(
                    record.encodings, targets=options.targets, counts=options.target_counts
                )
        elif all(reader.feature_names is not None for reader in inputs):
            self.columns = self._names
        categories = () if record is None else record.categories
        self._places = [
            {plain_word(word): j for j, word in enumerate(words)}
            for words in categories
            if words is not None
        ]
        self._labels = dict(zip(inputs, self._find_labels(options.label), strict=True))
        self.labelled = self._labels[inputs[0]] is not None
        pairs = self._labels.items()
        features = () if record is None or like is None or labels == "none" else record.columns
        for reader, name in pairs:
            if like is not None and name in features:
                raise InputError(
                    f"column {name!r} of {reader.name} is a feature of {like.name}: name the "
                    f"column of labels with --label, and look whether a column is missing"
                )
        are_words = {reader.kinds[name] != NUMBERS for reader, name in pairs if name is not None}
        if len(are_words) > 1:
            raise InputError(
                "the labels are words in some of the inputs and numbers in others; convert them "
                "to one type"
            )
        self._has_codes = True in are_words and not self._targets
        # Rows "unlabelled", values "filled", and rows without a category in a "column NAME".
        self.counts: Counter[str] = Counter()

    def _take(self, record: TableRecord) -> None:
        self.record, self.columns, self.table = record, record.features, record.to_json()

    def end_learning(self, ranges: ColumnRanges, log_values: Callable[[Any], Any]) -> int:
        """Find the means of categories when all is parsed; returns the number of new features."""
        if self.record is None or self.encoding is None or self.encoding.is_known:
            return 0
        n_features, encodings = len(self.record.features), {}
        for name, (encoding, values, rows) in self.encoding.fit(*self.labels()).items():
            if not _can_be_taken(values, self._options.log1p).all():
                raise InputError(
                    f"the mean targets of column {name!r} are beyond float32 (3.4e38), or not "
                    f"above -1 as --log1p needs; use another unit, or leave it out"
                )
            ranges.append(n_features, log_values(values), rows)
            n_features += values.shape[1]
            encodings[name] = encoding
        n_before = len(self.record.features)
        self._take(replace(self.record, encodings=encodings))
        return n_features - n_before

    def _find_labels(self, wanted: str | None) -> list[str | None]:
        """Column of the labels in each input; None in all where new rows have no labels yet."""
        recorded = None if self.record is None else self.record.label
        if self._label_form == "none":
            return [None] * len(self._readers)
        names = [
            recorded
            if wanted is None and reader.own_label is None and recorded in reader.kinds
            else wanted or reader.own_label
            for reader in self._readers
        ]
        if self._like is not None and not any(names):
            return [None] * len(names)
        return [find_label(reader, name) for reader, name in zip(self._readers, names, strict=True)]

    def parser(self, reader: readers.Reader) -> readers.Parse:
        """Parser of the blocks of one of the readers."""
        assert isinstance(reader, TableReader)
        label = self._labels[reader]
        wanted, places = Wanted(label), None
        if self.record is None:
            places = feature_places(reader.feature_names, self._names, reader.name)
        else:
            like = "" if self._like is None else self._like.name
            wanted = self.record.wanted(reader, label, self._readers[0].name, like)
        reader.choose(wanted)
        return lambda block: self._encode(reader.parse(block), places)

    def feature_name(self, column: int) -> str:
        """What a user calls a feature."""
        return f"column {column if self.columns is None else repr(self.columns[column])}"

    def notes(self) -> Iterator[str]:
        """What a user may not expect, one sentence each; when all is parsed.

        Columns without any category that the `like` file knows are warned of.
        """
        if not self.labelled and self._label_form == "codes":
            yield "there are no labels: the file is for prediction only (else give --label)"
        _, is_named, word = self._missing_labels.partition("=")
        named = f" or with the label {word!r}" * bool(is_named)
        if (count := self.counts["unlabelled"]) or named:
            yield f"{count} rows without a label{named} are left out"
        used = {*self._labels.values()}
        if self.record is not None:
            used |= {*self.record.columns, *self.record.encodings}
        if index := {name for reader in self._readers for name in reader.index} - used:
            yield f"the index of the rows is no feature and left out: {listed(sorted(index))}"
        if count := self.counts["filled"]:
            yield f"{count} missing values became the means of their columns"
        if self.record is None:
            return
        other = f", or with one that {self._like.name} does not have" if self._like else ""
        for name in (*self.record.hot, *self.record.encodings):
            what = "it has its mean" if name in self.record.encodings else "its features are all 0"
            count = self.counts[f"column {name}"]
            if self._like is not None and 0 < count == self.counts["rows"]:
                message = "column %r: no row of %d has a category that %s knows; %s in all of them"
                logger.warning(message, name, count, self._like.name, what)
            elif count:
                yield f"column {name!r}: {count} rows without a category{other}; {what} there"
        first = self._readers[0]
        if self._like is not None and len(first.columns) == (self.record.width or 0) - 1:
            yield (
                f"{first.name} has {len(first.columns)} columns and {self._like.name} has "
                f"{self.record.width}: the last one, of labels, is taken to be missing"
            )
        used |= {self.record.label, *(first.kinds if self._like is None else ())}
        names = (name for reader in self._readers for name in reader.proper_columns)
        if extra := list(dict.fromkeys(name for name in names if name not in used)):
            of = first.name if self._like is None else self._like.name
            yield f"columns that {of} does not use are left out: {listed(extra)}"

    def _count(self, what: str, number: int) -> None:
        with self._sharing:
            self.counts[what] += number

    def _encode(self, cells: readers.Cells, places: Int64Array | None) -> ParsedBlock:
        """Labels and sparse rows, of float64, of some cells, whose features are at `places`."""
        labels, skipped, n_skipped = cells.labels, list(cells.skipped), len(cells.skipped)
        drops = self._missing_labels != "refuse"
        dropped = _unlabelled(labels, self._missing_labels) & drops
        self._count("unlabelled", int(np.count_nonzero(dropped)))
        sparse = isinstance(cells.numbers, CSRRows)
        rows: Any = cells.numbers if sparse else self._columns(cells, ~dropped)
        if places is not None:
            rows = take_columns(rows, places)
        bad = self._bad_rows(cells, rows) & ~dropped
        if bad.any():
            where = np.flatnonzero(bad).tolist()
            if not self._options.skip:
                raise InputError(self._reason(cells, rows, where[0]))
            skipped += [self._reason(cells, rows, row) for row in where[: readers.EXAMPLES]]
            n_skipped += len(where)
        taken = ~(bad | dropped)
        if not taken.all():
            labels, rows = labels[taken], take_rows(rows, np.flatnonzero(taken))
        if self.label_map is not None:
            places_of_rows = np.flatnonzero(taken)
            labels = self._mapped(labels, lambda k: cells.place(int(places_of_rows[k])))
        if isinstance(labels, Words):
            names = tuple(self._spelled.get(word, word) for word in labels.values)
            labels = replace(labels, values=names)
        if isinstance(labels, Words) and self._label_form == "words":
            labels = np.array([*labels.values, ""])[labels.codes]
        elif isinstance(labels, Words):
            labels = _numbers_of(labels) if self._targets else self._codes_of(labels)
        self._count("rows", len(labels))
        rows, codes = self._features(rows), None
        if self.record is not None and self.encoding is not None:
            codes = self.encoding.codes_of(cells.words[len(self.record.hot) :])[taken]
            for name, column in zip(self.record.encodings, codes.T, strict=True):
                self._count(f"column {name}", int(np.count_nonzero(column == NO_WORD)))
            if self.encoding.is_known:
                rows, codes = append_columns(rows, self.encoding.values(codes)), None
        width, limit, n_stored = rows.n_features, self._options.n_features, len(rows.data)
        if limit is not None and width > limit:
            rows = keep_stored(rows, rows.indices < limit, limit)
        n_dropped = n_stored - len(rows.data)
        examples = tuple(skipped[: readers.EXAMPLES])
        return ParsedBlock(labels, rows, width, n_dropped, n_skipped, examples, codes)

    def _columns(self, cells: readers.Cells, counted: npt.NDArray[np.bool_]) -> CSRRows:
        """One value per column at most: a number, or 1 + the place of the category.

        Missing values that become means are counted in the rows that are `counted`.
        """
        record = self.record
        assert record is not None
        assert not isinstance(cells.numbers, CSRRows)
        values = np.empty((len(cells.labels), len(record.columns)))
        values[:, ~record.is_hot] = cells.numbers
        hot = np.flatnonzero(record.is_hot).tolist()
        for j, places, words in zip(hot, self._places, cells.words, strict=False):
            codes = np.array([places.get(word, -1) for word in words.values] + [-1])
            values[:, j] = 1 + codes[words.codes]
        if record.means is not None:
            missing = np.isnan(values)
            values[missing] = np.array(record.means)[np.nonzero(missing)[1]]
            self._count("filled", int(np.count_nonzero(missing[counted])))
        return CSRRows.from_dense(values)

    def _features(self, rows: CSRRows) -> CSRRows:
        """Rows with a feature for each category, from those of `_columns`."""
        record = self.record
        if record is None or not record.hot:
            return rows
        present = np.bincount(rows.indices, minlength=len(record.columns))
        for name, count in zip(record.hot, present[record.is_hot].tolist(), strict=True):
            self._count(f"column {name}", len(rows) - count)
        widths = [1 if words is None else len(words) for words in record.categories]
        starts = np.concatenate([[0], np.cumsum(widths, dtype=np.int64)])
        is_hot = record.is_hot[rows.indices]
        places = starts[rows.indices] + np.where(is_hot, rows.data - 1, 0).astype(np.int64)
        data = np.where(is_hot, 1.0, rows.data)
        return CSRRows(data, places.astype(np.int32), rows.indptr, int(starts[-1]))

    def _bad_rows(self, cells: readers.Cells, rows: CSRRows) -> npt.NDArray[np.bool_]:
        bad = _unlabelled(cells.labels)
        if not isinstance(cells.labels, Words):
            bad |= np.isinf(cells.labels)
        wrong = np.flatnonzero(~_can_be_taken(rows.data, self._options.log1p))
        bad[np.searchsorted(rows.indptr, wrong, side="right") - 1] = True
        if self.record is not None and self.record.means is None:
            for words in cells.words[: len(self.record.hot)]:
                bad |= words.codes < 0
        return bad

    def _reason(self, cells: readers.Cells, rows: CSRRows, row: int) -> str:
        """What is wrong with a bad row: one sentence with the file, the row and the column."""
        place, labels = cells.place(row), cells.labels
        if _unlabelled(labels)[row]:
            way = "leave such rows out (convert --missing-labels drop)"
            return f"{place}: the label is missing; {way}"
        if not isinstance(labels, Words) and np.isinf(labels[row]):
            return f"{place}: the label is not finite; every row needs a finite one"
        one = rows[row : row + 1]
        wrong = np.flatnonzero(~_can_be_taken(one.data, self._options.log1p))
        if len(wrong):
            column, value = int(one.indices[wrong[0]]), float(one.data[wrong[0]])
            name = str(column) if self.record is None else self.record.columns[column]
        else:
            assert self.record is not None
            hot = zip(self.record.hot, cells.words, strict=False)
            name, value = next(name for name, words in hot if words.codes[row] < 0), np.nan
        dates = () if self.record is None else self.record.dates
        if np.isnan(value):
            reason, way = "is missing", f"give --impute mean, delete the row, or --drop {name}"
        elif name in dates:
            reason, way = "is no date such as 2024-05-17 or 2024-05-17T08:30", "correct the row"
        elif np.isinf(value):
            reason, way = "is not finite", "delete the row"
        elif abs(value) > _FLOAT32_MAX:
            reason, way = "is beyond float32 (3.4e38)", "use another unit"
        else:
            reason, way = "has no log1p, it is not above -1", "leave out --log1p"
        if self._like is not None:
            way = f"correct or delete the row, as {self._like.name} takes no such values"
        return f"{place}: the value in column {name!r} {reason}; {way}"


def _unlabelled(
    labels: Float64Array | Words, missing_labels: str = "refuse"
) -> npt.NDArray[np.bool_]:
    if not isinstance(labels, Words):
        return np.isnan(labels) | are_label(labels, missing_labels)
    # Code -1 takes the last of these places.
    missing = np.array([word in MISSING_LABELS for word in labels.values] + [True])
    missing |= are_label(np.array([*labels.values, ""]), missing_labels)
    return missing[labels.codes]


def _numbers_of(labels: Words) -> Float64Array:
    words = [_TRUTH.get(word, word) for word in labels.values]
    for word in words:
        if not is_label_number(word):
            raise InputError(
                f"the label {word!r} is no number, and the targets of a regression are numbers; "
                f"name another column with --label"
            )
    return np.array([float(word) for word in words])[labels.codes]
