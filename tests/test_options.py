import dataclasses

import numpy as np
import pytest

from ooc_fw import InputError, TrainOptions
from ooc_fw.options import ConvertOptions, KernelOptions, TaskOptions, option_fields

RECORDS = (TrainOptions, KernelOptions, TaskOptions, ConvertOptions)
FIELDS = [
    pytest.param(record, name, declared, id=f"{record.__name__}.{name}")
    for record in RECORDS
    for name, declared in option_fields(record).items()
]


def test_every_field_is_declared():
    for record in RECORDS:
        fields = {own.name for own in dataclasses.fields(record)}
        assert option_fields(record).keys() == fields


@pytest.mark.parametrize(("record", "name", "declared"), FIELDS)
def test_default_and_limits_are_allowed_and_nothing_beyond(record, name, declared):
    record(**{name: declared.default})
    for choice in declared.choices:
        record(**{name: choice})
    wrong = []
    if declared.choices:
        wrong.append("no such thing")
    if declared.low is not None:
        more = {"stopping": "absolute"} if name == "tol" else {}
        record(**{name: declared.high}, **more)
        if not declared.above:
            record(**{name: declared.low})
        wrong += [-1, np.nan, np.inf, declared.high * 2, [1]]
        wrong += [declared.low] * declared.above + [declared.low + 0.5] * declared.whole
    for value in wrong:
        with pytest.raises(InputError, match=f"^{name} must be"):
            record(**{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"C": 0}, "C must be a positive number, not 0"),
        ({"C": "a"}, "C must be a number, not 'a'"),
        ({"seed": 1.5}, "seed must be a whole number of at least 0, not 1.5"),
        ({"landmarks": 1}, "landmarks must be auto, none or a whole number of at least 20, not 1"),
        ({"max_time": "soon"}, "max_time must be a positive number of seconds, not 'soon'"),
        ({"memory_limit": "much"}, "memory_limit 'much' is no size"),
        ({"tol": 1}, "tol must be below 1 with stopping relative, not 1"),
        ({"lmo": "half"}, "lmo must be one of auto, full, sampled, not"),
    ],
)
def test_message_names_option_values_allowed_and_value_given(options, message):
    with pytest.raises(InputError) as caught:
        TrainOptions(**options)
    assert str(caught.value).startswith(message)


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
