"""Options of training and conversion, declared once: type, default, help, limits and choices.

The checks of the records, the arguments of the commands (``cli/arguments.py``) and the defaults
of `FrankWolfeSVC` follow from the fields. To add an option, add a field, and its name to the
commands that show it. Imports no numerical library.
"""

from __future__ import annotations

import csv
import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeVar

from ooc_fw.system.errors import InputError, check_number
from ooc_fw.system.memory import parse_bytes

LARGEST = 2**63 - 1
"""Upper limit of whole numbers."""

START_ROWS = 20
"""Vertices that a run begins with; the papers call it p."""

NOVELTY_C = 30.0
"""Default of C for novelty. With 1, a tenth to a half of a few hundred training rows are novel."""

TASKS = ("classification", "novelty", "regression")


@dataclass(frozen=True)
class Option:
    """What is known of an option beside its type."""

    default: Any
    help: str = ""  # for the command line, with the default if its value does not say it
    low: float | None = None  # limits of a number, both included; None for what is no number
    high: float = LARGEST
    above: bool = False  # whether `low` itself is excluded
    whole: bool = False  # whether the number must be an integer
    unit: str = ""  # what a number counts, for messages
    choices: tuple[str, ...] = ()  # words that are allowed, perhaps in place of a number
    read: Callable[[str], Any] | None = None  # from text to a value; ValueError if malformed
    metavar: str | None = None  # placeholder of the value in the usage text
    name: str | None = None  # on the command line; None for that of the field, "" for a place
    flags: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    """For options without a value: name on the command line -> (value of the field, help)."""
    many: bool = False  # whether the option may be repeated, each time with a list of values
    nargs: int | str | None = None  # of arguments of commands, as in argparse

    def flag(self, name: str) -> str:
        """Name on the command line of the field `name`."""
        return self.name or "--" + name.replace("_", "-")

    def parse(self, text: str) -> Any:
        """Value of an argument; InputError with the allowed values, without the option's name."""
        if text in self.choices or (self.low is None and self.read is None):
            return self._checked(text, text)
        try:
            value = (self.read or (int if self.whole else float))(text)
        except InputError:
            raise
        except ValueError:
            raise InputError(f"must be {self._allowed(text)}, not {text!r}") from None
        return self._checked(value, text)

    def check(self, name: str, value: Any) -> Any:
        """The value; InputError, which begins with `name`, if it is not allowed."""
        is_text = isinstance(value, str) and self.read is not None
        if self.low is not None and value not in self.choices and not is_text:
            check_number(name, value)
        try:
            return self.parse(value) if is_text else self._checked(value, value)
        except InputError as error:
            raise InputError(f"{name} {error}") from None

    def _checked(self, value: Any, shown: object) -> Any:
        if self.low is not None and isinstance(value, Real):
            number: Any = value
            wrong = not self.low <= number <= self.high or (self.above and number == self.low)
            wrong = wrong or (self.whole and number % 1 != 0)
        else:
            wrong = bool(self.choices) and value not in self.choices
        if wrong:
            raise InputError(f"must be {self._allowed(value)}, not {shown!r}")
        return value

    def _allowed(self, value: object) -> str:
        """The allowed values in words; the upper limit is mentioned if it is exceeded."""
        words = ", ".join(self.choices)
        if self.low is None:
            return f"one of {words}"
        number = "whole number" if self.whole else "number"
        if self.low == 0 and self.above:
            text = f"a positive {number}{self.unit}"
        else:
            text = f"a {number}{self.unit} {'above' if self.above else 'of at least'} {self.low:g}"
        if isinstance(value, float | int) and value > self.high:
            text += f", at most {self.high:g}"
        return f"{words} or {text}" if words else text


def option(default: Any, help: str = "", **declaration: Any) -> Any:
    """Field of a record of options; see `Option` for what can be declared."""
    return field(default=default, metadata={"option": Option(default, help, **declaration)})


def file_name(text: str) -> str:
    """The name of a file; InputError for an empty one, which a variable without a value gives."""
    if not text:
        raise InputError("must be the name of a file, not ''")
    return text


def switch(name: str, help: str, default: bool = False) -> Any:
    """Field of a record of options that an option without a value, called `name`, reverses."""
    return option(default, flags={name: (not default, help)})


def option_fields(record: type) -> dict[str, Option]:
    """Declarations of the fields of a record of options, by name."""
    fields = dataclasses.fields(record)
    return {each.name: each.metadata["option"] for each in fields if "option" in each.metadata}


Record = TypeVar("Record")


def _documented(record: type[Record]) -> type[Record]:
    """Append the declared parameters of a record of options to its docstring."""
    lines = [inspect.cleandoc(record.__doc__ or ""), "", "Parameters", "----------"]
    for name, declared in option_fields(record).items():
        flags = "; ".join(f"{value}: {text}" for value, text in declared.flags.values())
        words = declared.choices if declared.low is None else ()
        kind = f"{{{', '.join(map(repr, words))}}}" if words else record.__annotations__[name]
        lines += [f"{name} : {kind}", f"    {declared.help or flags}"]
    record.__doc__ = "\n".join(lines)
    return record


class _Checked:
    """A record whose fields are checked; None is allowed if it is the default.

    A size or a duration may also be text, as on the command line; the record holds its number.
    """

    def __post_init__(self) -> None:
        for name, declared in option_fields(type(self)).items():
            value = getattr(self, name)
            if not declared.flags and not (value is None and declared.default is None):
                object.__setattr__(self, name, declared.check(name, value))


def _duration(text: str) -> float:
    """Seconds of a duration: a number, or one with the unit s, m or h."""
    seconds = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
    return float(text) if seconds is None else float(text[:-1]) * seconds


def _column_names(text: str) -> list[str]:
    """Names with commas between them; a name with a comma in it is quoted."""
    return [name.strip() for line in csv.reader([text]) for name in line]


POSITIVE: dict[str, Any] = {"low": 0, "above": True, "high": 1e100}
COUNT: dict[str, Any] = {"low": 1, "whole": True, "metavar": "N"}
_SEED = COUNT | {"low": 0}
_INT32 = COUNT | {"high": 2**31 - 1}
_VERTICES = COUNT | {"low": START_ROWS}
_COLUMNS: dict[str, Any] = {"read": _column_names, "metavar": "COLUMNS", "many": True}
DURATION = POSITIVE | {"unit": " of seconds", "read": _duration, "metavar": "TIME"}
"""Declaration of a duration: 90, or as text 90s, 30m or 2h."""
SHARE = POSITIVE | {"high": 0.999999, "metavar": "SHARE"}
"""Declaration of a share of the rows."""


@_documented
@dataclass(frozen=True)
class KernelOptions(_Checked):
    """Kernel by name, and its parameters, of which ``gamma`` may still depend on the data."""

    # Names are checked against `ooc_fw.kernels.functions.KERNELS`, which this module cannot import.
    kernel: str = option("rbf", "rbf, linear, poly, laplacian, tanimoto")
    gamma: float | str = option(
        "auto",
        "auto, from the squared distances of rows; scale, as in scikit-learn; or a number",
        choices=("auto", "scale"),
        **POSITIVE,
    )
    degree: int = option(2, "of the poly kernel", **_INT32)
    coef0: float = option(0.0, "of the poly kernel", low=0, high=1e100)


@_documented
@dataclass(frozen=True)
class TrainOptions(_Checked):
    """Options of training, without those of the kernel and the data.

    `max_time` is in seconds, `memory_limit` in bytes, or text such as "30m" and "1GiB".
    """

    C: float = option(1.0, "penalty C of squared slacks: the primal has C/2 xi^2", **POSITIVE)
    # Names are checked against the registry of step rules, which this module cannot import.
    method: str = option("auto", "auto, fw, mfw, swap, swap2, partan, cvm or corrective")
    lmo: str = option(
        "auto", "oracle that proposes toward vertices", choices=("auto", "full", "sampled")
    )
    start: str = option(
        "random", "first rows: random, or two far apart", choices=("random", "farthest")
    )
    sample_size: int = option(
        194, "rows that a single step draws (method corrective looks at blocks)", **COUNT
    )
    tol: float = option(1e-3, "target tolerance of the duality gap", **POSITIVE)
    stopping: str = option(
        "relative", "gap that is compared with tol", choices=("relative", "absolute", "meb")
    )
    certify: bool = switch("--no-certify", "leave out the pass over all rows", default=True)
    max_iter: int | None = option(None, "stop after N iterations (default: no limit)", **_SEED)
    max_time: float | None = option(
        None,
        "end after this time with the model found so far: 90, 90s, 30m, 2h (default: no limit)",
        **DURATION,
    )
    seed: int = option(0, "seed of every random draw", **_SEED)
    threads: int = option(1, "threads", **COUNT | {"high": 4096})
    memory_limit: int | None = option(
        None,
        "limit of the peak resident memory, such as 1GiB (default: half of the memory there is)",
        name="--memory",
        metavar="SIZE",
        low=0,
        read=parse_bytes,
    )
    landmarks: int | None = option(
        None,
        "N: learn weights of N rows of the data from all rows; none: train to the optimum; auto "
        "(default): landmarks if the optimum takes too much",
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
                f"tol must be below 1 with stopping relative, not {self.tol:g}: a model of gap 1 "
                f"is of no use; give a smaller --tol, or --stopping absolute"
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


KEEP = Option(10_000, "rows that the stream keeps at most", **_VERTICES)
"""Declaration of how many rows a stream keeps: kernel values between so many take up to 625 MB."""


@_documented
@dataclass(frozen=True)
class TaskOptions(_Checked):
    """What novelty and regression have beside `TrainOptions`."""

    contamination: float | None = option(
        None,
        "share of the rows that the model takes for novel (default: only rows below the margin)",
        **SHARE | {"high": 0.5},
    )
    epsilon: float = option(
        0.1,
        "half the width of the tube around targets in which nothing is lost, in their units",
        **POSITIVE | {"above": False},
    )


SCALINGS = ("none", "minmax", "maxabs", "standard")


@_documented
@dataclass(frozen=True)
class ConvertOptions(_Checked):
    """What becomes of the rows and columns of an input."""

    dense: bool | None = option(
        None,
        flags={
            "--dense": (True, "store dense rows (default: chosen by density)"),
            "--sparse": (False, "store CSR rows"),
        },
    )
    scale: str = option(
        "none",
        "scale columns of numbers; categories of --one-hot stay 0 and 1",
        choices=SCALINGS,
        metavar="KIND",
    )
    log1p: bool = switch("--log1p", "take log(1 + x) before scaling")
    like: str | os.PathLike[str] | None = option(
        None,
        "take features, scaling, labels and header from a converted file or a model",
        metavar="TRAIN.h5",
        read=file_name,
    )
    shuffle: bool = switch("--no-shuffle", "keep the order of the rows", default=True)
    seed: int = option(0, "seed of the shuffle", **_SEED)
    zero_based: bool = switch("--zero-based", "the first feature of the text is called 0, not 1")
    n_features: int | None = option(
        None,
        "width of the file; features beyond it are dropped (default: that of the widest row)",
        **_INT32,
    )
    compression: str = option(
        "none", "smaller files, which take longer to read", choices=("none", "gzip")
    )
    label: str | None = option(
        None,
        "labels: a column, a key of obs or an array (default: y)",
        metavar="NAME",
    )
    task: str = option(
        "classification",
        "classification, novelty, or regression: labels are numbers (--like knows it)",
        choices=TASKS,
        metavar="TASK",
    )
    one_hot: Sequence[str] = option(
        (), "columns whose categories become features of 0 and 1, with commas", **_COLUMNS
    )
    target_encode: Sequence[str] = option(
        (),
        "columns of many categories, which become shares of classes or means of targets",
        **_COLUMNS,
    )
    dates: Sequence[str] = option((), "dates and times, as seconds since 1970", **_COLUMNS)
    drop: Sequence[str] = option((), "columns to leave out, with commas between them", **_COLUMNS)
    impute: str | None = option(
        None,
        "replace missing numbers (empty, NA, nan, null, None, ?, -) by the mean of their column",
        choices=("mean",),
    )
    missing_labels: str = option(
        "refuse", "rows without a label are an error, or left out", choices=("refuse", "drop")
    )
    labels_as: str | None = option(
        None,
        "new labels, such as 'normal=normal,*=attack'; * is every label that is not named",
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
    delimiter: str | None = option(
        None, "between cells of CSV (default: as in the first line)", metavar="C"
    )
    labels: str | os.PathLike[str] | None = option(
        None, "labels in a file beside the rows, .npy", metavar="FILE", read=file_name
    )
    x_name: str = option("X", "name of the rows in a file of several arrays", metavar="NAME")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label is not None and self.labels is not None:
            raise InputError("--label and --labels contradict each other; leave one of them out")
        if self.labels_as is not None and self.targets:
            raise InputError("--labels-as is for classes, not for targets; leave it out")
        names = "log1p", "n_features", "one_hot", "target_encode", "dates", "impute"
        given = [name for name in names if getattr(self, name)] + ["scale"] * (self.scale != "none")
        if self.like is not None and given:
            raise InputError(
                f"--{given[0].replace('_', '-')} comes from {self.like} here; leave it out, or "
                f"leave out --like"
            )

    @property
    def targets(self) -> bool:
        """Whether labels are the targets of a regression."""
        return self.task == "regression"

    @property
    def of_columns(self) -> bool:
        """Whether an option says what becomes of some column of a table."""
        names = "one_hot", "target_encode", "dates", "drop", "impute"
        return any(getattr(self, name) for name in names)

    @property
    def for_tables(self) -> bool:
        """Whether an option is given that only tables have."""
        given = (self.label, self.header, self.delimiter) != (None, None, None)
        return given or self.of_columns or self.missing_labels != "refuse"
