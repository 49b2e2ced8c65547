"""Options of training and conversion, declared once: type, default, help, limits and choices.

Three things follow from the fields: the checks of the records, the arguments of the commands
(``cli/arguments.py``) and the defaults of `FrankWolfeSVC`. To add an option, add a field, and add
its name to the commands that have it. This module imports no numerical library.
"""

from __future__ import annotations

import csv
import dataclasses
import inspect
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeVar

from ooc_fw.system.errors import InputError, printable
from ooc_fw.system.memory import parse_bytes

LARGEST = 2**63 - 1
"""Upper limit of options that are whole numbers."""

LEAST = 1e-100
"""Lower limit of positive numbers: their squares and reciprocals stay within float64."""

START_ROWS = 20
"""Number of vertices that a run begins with; the papers call it p."""

NOVELTY_C = 30.0
"""Default of C for novelty. With C = 1, 10 to 50 % of a few hundred training rows are novel."""

TASKS = ("classification", "novelty", "regression")


@dataclass(frozen=True)
class Option:
    """Declaration of an option, except for its type, which is that of the field."""

    default: Any
    help: str = ""  # for the command line; explains the default if its value is no explanation
    low: float | None = None  # lower limit of a number; None if the option is not a number
    high: float = LARGEST  # upper limit; numbers equal to a limit are allowed
    whole: bool = False  # whether the number must be an integer
    unit: str = ""  # what the number counts, such as " of seconds", for messages
    choices: tuple[str, ...] = ()  # allowed words; the option may also be a number
    read: Callable[[str], Any] | None = None  # parses text; raises ValueError if it is malformed
    metavar: str | None = None  # placeholder of the value in the usage text
    name: str | None = None  # on the command line; None: as the field; "": a positional argument
    flags: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    """For options without a value: name on the command line -> (value of the field, help)."""
    many: bool = False  # whether the option may be repeated, each time with a list of values
    nargs: int | str | None = None  # number of values, as in argparse

    def flag(self, name: str) -> str:
        """Name on the command line of the field `name`."""
        return self.name or "--" + name.replace("_", "-")

    def parse(self, text: str) -> Any:
        """Parse an argument; an InputError lists the allowed values, but not the name."""
        if text in self.choices or (self.low is None and self.read is None):
            return self._converted(text, text)
        try:
            value = (self.read or (int if self.whole else float))(text)
        except InputError:
            raise
        except ValueError:
            raise InputError(f"must be {self._allowed(text)}, not {text!r}") from None
        return value if self.low is None else self._converted(value, text)

    def check(self, name: str, value: Any) -> Any:
        """Return an allowed value in the type of the option: int, float, bool, str or list.

        Numbers may be of any type, and text is read as on the command line. For a value that is not
        allowed, an InputError begins with `name`.
        """
        given = os.fspath(value) if isinstance(value, os.PathLike) else value
        if getattr(given, "shape", None) == ():  # a scalar of numpy, or an array without dimensions
            given = given.item()
        try:
            return self.parse(given) if isinstance(given, str) else self._converted(given, value)
        except InputError as error:
            raise InputError(f"{name} {error}") from None

    def _converted(self, value: Any, shown: object) -> Any:
        is_word = isinstance(value, str)
        convert: Callable[[Any], Any] = type(value)
        if self.low is not None and not is_word:
            fits = isinstance(value, Real) and not isinstance(value, bool)
            fits = fits and self.low <= value <= self.high and not (self.whole and value % 1)
            convert = int if self.whole else float
        elif self.many:
            fits = isinstance(value, Iterable) and all(isinstance(each, str) for each in value)
            convert = list
        elif self.flags:
            fits = isinstance(value, bool)
        else:
            fits = is_word and (not self.choices or value in self.choices)
        if not fits:
            raise InputError(f"must be {self._allowed(value)}, not {printable(repr(shown))}")
        return convert(value)

    def _allowed(self, value: Any) -> str:
        """The allowed values in words; a limit far away is named only if `value` is beyond it."""
        words = ", ".join(self.choices)
        if self.low is None:
            kind = "True or False" if self.flags else "a list of names" if self.many else "text"
            return f"one of {words}" if words else kind
        number = ("whole number" if self.whole else "number") + self.unit
        is_number = isinstance(value, float | int)
        text = f"a positive {number}"
        if self.low != LEAST:
            text = f"a {number} of at least {self.low:g}"
        elif is_number and 0 < value < LEAST:
            text += f" of at least {LEAST:g}"
        if is_number and value > self.high:
            text += f", at most {self.high}"
        if self.metavar == "SHARE":
            text += ", such as 0.01 or 1%"
        return f"{words} or {text}" if words else text


def option(default: Any, help: str = "", **declaration: Any) -> Any:
    """Field of a record of options; `Option` lists what can be declared."""
    return field(default=default, metadata={"option": Option(default, help, **declaration)})


def file_name(text: str) -> str:
    """Check the name of a file. An unset variable of the shell gives "", which is refused."""
    if not text:
        raise InputError("must be the name of a file, not ''")
    return text


def _name(text: str) -> str:
    """Check the name of an array or a column: files hold names in UTF-8, without NUL."""
    if not text or "\0" in text or text != text.encode(errors="replace").decode():
        raise InputError(f"must be a name in UTF-8, not {text!r}")
    return text


def switch(name: str, help: str, default: bool = False) -> Any:
    """Field of a record that is true or false; the option `name`, without a value, reverses it."""
    return option(default, flags={name: (not default, help)})


def option_fields(record: type) -> dict[str, Option]:
    """Declarations of all options of a record, by the names of their fields."""
    fields = dataclasses.fields(record)
    return {each.name: each.metadata["option"] for each in fields if "option" in each.metadata}


Record = TypeVar("Record")


def _documented(record: type[Record]) -> type[Record]:
    """Append the options of a record to its docstring, as parameters."""
    lines = [inspect.cleandoc(record.__doc__ or ""), "", "Parameters", "----------"]
    for name, declared in option_fields(record).items():
        flags = "; ".join(f"{value}: {text}" for value, text in declared.flags.values())
        words = declared.choices if declared.low is None else ()
        kind = f"{{{', '.join(map(repr, words))}}}" if words else record.__annotations__[name]
        lines += [f"{name} : {kind}", f"    {declared.help or flags}"]
    record.__doc__ = "\n".join(lines)
    return record


class _Checked:
    """A record whose fields are checked and become their types once; None may be a default.

    Numbers may have any type of Python and numpy, or be text as on the command line.
    """

    def __post_init__(self) -> None:
        for name, declared in option_fields(type(self)).items():
            value = getattr(self, name)
            if value is not None or declared.default is not None:
                object.__setattr__(self, name, declared.check(name, value))


def _duration(text: str) -> float:
    """Parse a duration: a number of seconds, or a number with the unit s, m or h."""
    seconds = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
    return float(text) if seconds is None else float(text[:-1]) * seconds


def _share(text: str) -> float:
    """Parse a share: a number, or a percentage with its sign."""
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def _column_names(text: str) -> list[str]:
    """Parse names with commas between them; a name that contains a comma is quoted."""
    if {"\n", "\r"} & {*text}:
        raise InputError(f"must be names with commas between them, in one line, not {text!r}")
    return [name.strip() for line in csv.reader([text]) for name in line]


def _names_in(text: str) -> list[str]:
    """Parse names with commas or line breaks between them, or such names in a file."""
    if os.path.isfile(text):
        with open(text, encoding="utf-8-sig") as file:
            text = file.read()
    names = [name for line in text.splitlines() for name in _column_names(line)]
    if "" in names or len({*names}) < len(names):
        raise InputError("must be names of columns, each once, or a file of them")
    return names


def split_pairs(text: str) -> list[tuple[str, str]]:
    """Parse ``LABEL=VALUE,...``; quotes as in CSV enclose a label with commas."""
    parts = next(csv.reader(io.StringIO(text, newline=""), skipinitialspace=True), [])
    return [(label, value.strip()) for label, _, value in (part.rpartition("=") for part in parts)]


POSITIVE: dict[str, Any] = {"low": LEAST, "high": 1e100}
COUNT: dict[str, Any] = {"low": 1, "whole": True, "metavar": "N"}
_SEED = COUNT | {"low": 0}
_INT32 = COUNT | {"high": 2**31 - 1}
MAX_FEATURES = 1 << 26
"""Most features of a file: statistics of columns take up to 64 bytes for each."""
_VERTICES = COUNT | {"low": START_ROWS}
_COLUMNS: dict[str, Any] = {"read": _column_names, "metavar": "COLUMNS", "many": True}
DURATION = POSITIVE | {"unit": " of seconds", "read": _duration, "metavar": "TIME"}
"""Declaration of a duration, such as 90, 90s, 30m or 2h."""
SHARE = POSITIVE | {"high": 0.999999, "read": _share, "metavar": "SHARE"}
"""Declaration of a share, such as 0.01 or 1%."""


@_documented
@dataclass(frozen=True)
class KernelOptions(_Checked):
    """Name and parameters of a kernel; ``gamma`` may be a rule, to be applied to the data."""

    # Names are checked against `ooc_fw.kernels.functions.KERNELS`, which this module cannot import.
    kernel: str = option("rbf", "kernel: rbf, linear, poly, laplacian or tanimoto")
    gamma: float | str = option(
        "search",
        "gamma of the kernel: search (the best of a few times auto, for a sample of classes), auto "
        "(from distances of rows), scale (as scikit-learn) or a number",
        choices=("search", "auto", "scale"),
        **POSITIVE,
    )
    degree: int = option(2, "exponent of the poly kernel", **_INT32)
    coef0: float = option(0.0, "constant term of the poly kernel", low=0, high=1e100)


@_documented
@dataclass(frozen=True)
class TrainOptions(_Checked):
    """Options of training, except those of the kernel and the data.

    `max_time` is in seconds, `memory_limit` in bytes, or text such as "30m" and "1GiB".
    """

    C: float = option(1.0, "penalty of squared slacks xi: the primal has C/2 xi^2", **POSITIVE)
    # Names are checked against the registry of step rules, which this module cannot import.
    method: str = option("auto", "step rule: auto, fw, mfw, swap, swap2, partan, cvm, corrective")
    lmo: str = option(
        "auto", "rows of the oracle: full (all) or sampled", choices=("auto", "full", "sampled")
    )
    start: str = option(
        "random", "first vertices: random, or the farthest pair", choices=("random", "farthest")
    )
    sample_size: int = option(
        194, "rows that the sampled oracle draws; method corrective looks at blocks", **COUNT
    )
    tol: float = option(1e-3, "duality gap at which training ends", **POSITIVE)
    stopping: str = option(
        "relative", "gap of tol: relative, absolute or meb", choices=("relative", "absolute", "meb")
    )
    certify: bool = switch("--no-certify", "skip the reading that certifies the gap", default=True)
    max_iter: int | None = option(None, "stop after N iterations (default: no limit)", **_SEED)
    max_time: float | None = option(
        None,
        "end after this time with the model found so far: 90, 90s, 30m, 2h (default: no limit)",
        **DURATION,
    )
    seed: int = option(0, "seed of all random draws", **_SEED)
    threads: int = option(1, "number of threads", **COUNT | {"high": 4096})
    memory_limit: int | None = option(
        None,
        "limit of the peak memory, such as 1GiB (default: half of the memory of the machine)",
        name="--memory",
        metavar="SIZE",
        low=0,
        whole=True,
        read=parse_bytes,
    )
    landmarks: int | None = option(
        None,
        "N: learn from all rows, with weights on N of them; none: train to the optimum; auto "
        "(default): use landmarks if the optimum takes too much time or memory",
        **_VERTICES | {"choices": ("auto", "none"), "metavar": "{auto,N,none}"},
    )
    exact: bool = switch("--exact", "the same as --landmarks none")

    def __post_init__(self) -> None:
        super().__post_init__()
        word: Any = self.landmarks
        if word == "none":
            object.__setattr__(self, "exact", True)
        if word in ("auto", "none"):
            object.__setattr__(self, "landmarks", None)
        if self.stopping == "relative" and self.tol >= 1:
            raise InputError(
                f"tol must be below 1 with stopping relative, not {self.tol:g}: a model with gap 1 "
                f"is useless; give a smaller --tol, or --stopping absolute"
            )
        for name in ("exact", "method", "lmo", "start", "stopping"):
            if self.landmarks is not None and getattr(self, name) != getattr(TrainOptions, name):
                raise InputError(
                    f"--landmarks {self.landmarks} and --{name} contradict each other; leave one "
                    f"of them out"
                )

    def to_dict(self) -> dict[str, Any]:
        """The options by name."""
        return {name: getattr(self, name) for name in option_fields(TrainOptions)}


THREADS = option_fields(TrainOptions)["threads"]
"""Number of threads, of predictions and certificates, too."""

KEEP = Option(10_000, "largest number of rows that the stream keeps", **_VERTICES)
"""Number of rows that a stream keeps. The kernel values between 10,000 rows take up to 625 MB."""


@dataclass(frozen=True)
class ModelOptions(TrainOptions, KernelOptions):
    """All options of a model; those of other tasks and kernels have no effect."""

    contamination: float | None = option(
        None,
        "share of new ordinary rows that may be called novel (default: rows below the margin are)",
        **SHARE | {"high": 0.5},
    )
    epsilon: float = option(
        0.1,
        "largest error of a prediction that costs nothing, in units of the targets",
        **POSITIVE | {"low": 0},
    )
    probability: bool = switch(
        "--probability", "train a model that gives probabilities; takes up to twice the time"
    )


SCALINGS = ("none", "minmax", "maxabs", "standard")


@_documented
@dataclass(frozen=True)
class ConvertOptions(_Checked):
    """How the rows and columns of an input are converted."""

    dense: bool | None = option(
        None,
        flags={
            "--dense": (True, "store dense rows (default: chosen by density)"),
            "--sparse": (False, "store sparse rows (CSR)"),
        },
    )
    scale: str = option(
        "none",
        "scale columns of numbers: none, minmax, maxabs or standard; not those of --one-hot",
        choices=SCALINGS,
        metavar="KIND",
    )
    log1p: bool = switch("--log1p", "take log(1 + x) before scaling")
    normalize: bool = switch(
        "--normalize", "divide each row by its Euclidean norm, after --log1p and --scale"
    )
    like: str | os.PathLike[str] | None = option(
        None,
        "take features, scaling, labels and header from a converted file or a model",
        metavar="TRAIN.h5",
        read=file_name,
    )
    shuffle: bool = switch("--no-shuffle", "keep the order of the rows", default=True)
    seed: int = option(0, "seed of the shuffle", **_SEED)
    zero_based: bool = switch("--zero-based", "LIBSVM text counts features from 0, not from 1")
    n_features: int | None = option(
        None,
        "number of features; those beyond it are dropped (default: as many as the widest row)",
        **COUNT | {"high": MAX_FEATURES},
    )
    compression: str = option(
        "none", "gzip makes a smaller file, which is slower to read", choices=("none", "gzip")
    )
    label: str | None = option(
        None,
        "name of the labels: of a column, a key of obs or an array (default: y)",
        metavar="NAME",
        read=_name,
    )
    task: str = option(
        "classification",
        "classification, novelty, or regression, whose labels are numbers (--like implies it)",
        choices=TASKS,
        metavar="TASK",
    )
    one_hot: Sequence[str] = option(
        (), "columns, with commas; each category in them becomes a feature of 0 and 1", **_COLUMNS
    )
    target_encode: Sequence[str] = option(
        (),
        "columns whose categories become numbers: shares of the classes, or the mean target",
        **_COLUMNS,
    )
    dates: Sequence[str] = option((), "columns of dates, to become seconds since 1970", **_COLUMNS)
    drop: Sequence[str] = option((), "columns to leave out, with commas between them", **_COLUMNS)
    weight: str | None = option(
        None, "column of the weights of rows: factors of C in training", metavar="COLUMN"
    )
    impute: str | None = option(
        None,
        "replace missing numbers (empty, NA, nan, null, None, ?, -) by the mean of their column",
        choices=("mean",),
    )
    fill_missing: str | None = option(
        None,
        "features of training that the rows lack count as 0, such as genes that were not counted",
        choices=("0",),
        metavar="0",
    )
    missing_labels: str = option(
        "refuse", "rows without a label: refuse the input, or drop them", choices=("refuse", "drop")
    )
    labels_as: str | None = option(
        None,
        "rename labels, such as 'normal=normal,*=attack'; * stands for all other labels, and *=* "
        "keeps them; quotes as in CSV: '\"a, b\"=c'",
        metavar="LABEL=NEW,...",
    )
    format: str = option(
        "auto",
        "format of the input; auto recognises it by content and name",
        choices=("auto", "libsvm", "csv", "parquet", "arrow", "npy", "hdf5", "zarr"),
    )
    header: bool | None = option(
        None,
        flags={
            "--no-header": (False, "the first line of CSV is a row; columns are 0, 1, ..."),
            "--header": (True, "the first line of CSV names the columns (default)"),
        },
    )
    names: Sequence[str] = option(
        (),
        "names of all columns of CSV without a header: a list with commas, or a file of them",
        **_COLUMNS | {"read": _names_in, "metavar": "NAMES"},
    )
    delimiter: str | None = option(
        None, "character between cells of CSV (default: found in the first line)", metavar="C"
    )
    labels: str | os.PathLike[str] | None = option(
        None, "file of labels (.npy), if they are not with the rows", metavar="FILE", read=file_name
    )
    x_name: str | None = option(
        None,
        "array of the rows in a file of several arrays (default: X, or that of --like or MODEL)",
        metavar="NAME",
        read=_name,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label is not None and self.labels is not None:
            raise InputError("--label and --labels contradict each other; leave one of them out")
        if self.labels_as is not None and self.targets:
            raise InputError("--labels-as is for classes, not for targets; leave it out")
        if self.fill_missing is not None and self.like is None:
            raise InputError("--fill-missing goes with --like, which knows the features; add that")
        if self.names and self.header is not None:
            raise InputError("--names is for CSV without a header; leave out --header, --no-header")
        if self.normalize and self.target_encode:
            raise InputError(
                "--normalize does not go with --target-encode, whose features depend on the rows "
                "that are trained on; leave one of them out"
            )
        names = "log1p", "normalize", "n_features", "one_hot", "target_encode", "dates", "impute"
        given = [name for name in names if getattr(self, name)] + ["scale"] * (self.scale != "none")
        if self.like is not None and given:
            raise InputError(
                f"--{given[0].replace('_', '-')} comes from {self.like} here; leave it out, or "
                f"leave out --like"
            )

    @property
    def targets(self) -> bool:
        """Whether the labels are targets of a regression."""
        return self.task == "regression"

    @property
    def of_columns(self) -> bool:
        """Whether an option says how to convert columns of a table."""
        names = "one_hot", "target_encode", "dates", "drop", "impute", "weight"
        return any(getattr(self, name) for name in names)

    @property
    def for_tables(self) -> bool:
        """Whether an option is given that has a meaning for tables only."""
        given = (self.label, self.header, self.delimiter) != (None, None, None)
        given |= bool(self.names)
        return given or self.of_columns or self.missing_labels != "refuse"
