"""Arguments that are given again to a command."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ooc_fw.options import ConvertOptions, option_fields


def arguments_of(record: type, values: Mapping[str, Any]) -> list[str]:
    """Arguments that give a record of options these values; defaults are left out."""
    arguments = []
    for name, declared in option_fields(record).items():
        value = values.get(name, declared.default)
        if value == declared.default:
            continue
        flags = [flag for flag, (set_to, _) in declared.flags.items() if set_to == value]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        arguments += flags or [declared.flag(name), str(value)]
    return arguments


def data_arguments(args: argparse.Namespace, known: Sequence[str] = ()) -> list[str]:
    """Options given that say where rows and labels are, but those in `known`, for a command."""
    names = {"label", "labels", "x_name", "header"} & {*vars(args)}
    left = [name for name in names if f"--{name.replace('_', '-')}" not in known]
    return arguments_of(ConvertOptions, {name: vars(args)[name] for name in left})
