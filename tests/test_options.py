import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from ooc_fw import InputError, TrainOptions
from ooc_fw.options import LEAST, ConvertOptions, KernelOptions, ModelOptions, option_fields

RECORDS = (ModelOptions, ConvertOptions)
FIELDS = [
    pytest.param(record, name, declared, id=f"{record.__name__}.{name}")
    for record in RECORDS
    for name, declared in option_fields(record).items()
]

NEEDED = {"tol": {"stopping": "absolute"}, "fill_missing": {"like": "train.h5"}}
"""Options without which some values of an option are refused."""


def test_every_field_is_declared():
    for record in RECORDS:
        fields = {own.name for own in dataclasses.fields(record)}
        assert option_fields(record).keys() == fields


@pytest.mark.parametrize(("record", "name", "declared"), FIELDS)
def test_default_and_limits_are_allowed_and_nothing_beyond(record, name, declared):
    record(**{name: declared.default})
    for choice in declared.choices:
        record(**NEEDED.get(name, {}), **{name: choice})
    wrong = []
    if declared.choices:
        wrong.append("no such thing")
    if declared.low is not None:
        record(**{name: declared.high}, **NEEDED.get(name, {}))
        record(**{name: declared.low})
        wrong += [-1, np.nan, np.inf, declared.high * 2, [1], True, np.True_, np.array([1.0])]
        wrong += [0, 1e-320] * (declared.low == LEAST) + [declared.low + 0.5] * declared.whole
    if declared.flags:
        wrong += ["yes", 1, np.array([True])]
    for value in wrong:
        with pytest.raises(InputError, match=f"^{name} must be"):
            record(**{name: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"C": 0}, "C must be a positive number, not 0"),
        ({"C": "a"}, "C must be a positive number, not 'a'"),
        ({"C": True}, "C must be a positive number, not True"),
        ({"C": 1e-320}, "C must be a positive number of at least 1e-100, not 1e-320"),
        ({"certify": "no"}, "certify must be True or False, not 'no'"),
        ({"method": 1}, "method must be text, not 1"),
        ({"seed": 1.5}, "seed must be a whole number of at least 0, not 1.5"),
        ({"landmarks": 1}, "landmarks must be auto, none or a whole number of at least 20, not 1"),
        ({"max_time": "soon"}, "max_time must be a positive number of seconds, not 'soon'"),
        ({"memory_limit": "much"}, "memory_limit 'much' is no size"),
        ({"tol": 1}, "tol must be below 1 with stopping relative, not 1"),
        ({"lmo": "half"}, "lmo must be one of auto, full, sampled, not"),
    ],
)
def test_message_names_option_values_allowed_and_value_given(given, message):
    with pytest.raises(InputError) as caught:
        TrainOptions(**given)
    assert re.match(message, str(caught.value))


FORMS = (int, float, str, np.int32, np.int64, np.float32, np.float64, np.array)
"""Types in which a number may be given."""


@pytest.mark.parametrize(("record", "name", "declared"), FIELDS)
def test_a_value_of_any_form_becomes_the_type_of_the_option(record, name, declared):
    if declared.many:
        given = [(names, ["a", "b"]) for names in (("a", "b"), "a, b", np.array(["a", "b"]))]
    elif declared.flags:
        given = [(form(value), value) for value in (True, False) for form in (np.bool_, np.array)]
    elif declared.low is None:
        word = declared.choices[-1] if name != "scale" and declared.choices else "none"
        given = [(form(word), word) for form in (np.str_, np.array, Path)]
    else:
        value = 0.5 if name in ("contamination", "tol") else 20 if declared.whole else 20.0
        forms = FORMS if value == 20 else FORMS[1:3] + FORMS[-3:]
        given = [(form(value), value) for form in forms]
    for form, value in given:
        got = getattr(record(**NEEDED.get(name, {}), **{name: form}), name)
        assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize(
    ("record", "name", "text", "value"),
    [
        (TrainOptions, "C", "1e-3", 1e-3),
        (TrainOptions, "max_time", "1.5m", 90.0),
        (TrainOptions, "max_time", "2h", 7200.0),
        (TrainOptions, "memory_limit", "1GiB", 1 << 30),
        (KernelOptions, "gamma", "auto", "auto"),
        (KernelOptions, "gamma", "0.5", 0.5),
        (ConvertOptions, "one_hot", 'job,"a,b", c', ["job", "a,b", "c"]),
    ],
)
def test_text_becomes_a_value(record, name, text, value):
    parsed = option_fields(record)[name].parse(text)
    assert (parsed, type(parsed)) == (value, type(value))
    if name in ("max_time", "memory_limit"):  # units, which Python takes, too
        assert getattr(TrainOptions(**{name: text}), name) == value
