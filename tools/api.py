"""Write the guide of the public names, ``ooc_fw/guides/api.md``, from signatures and docstrings.

    python tools/api.py

A test fails while the guide is not what this would write. Members that classes inherit from other
packages are left out, so that the guide does not depend on the versions of these.
"""

import dataclasses
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ooc_fw

GUIDE = Path(ooc_fw.__file__).parent / "guides" / "api.md"
WIDTH = 100  # columns of a line

HEAD = """# The public names of `ooc_fw`

Each name has one meaning. In Python, `help(ooc_fw.NAME)` prints the same, and examples.
[python](python.md) tells which option of a command is which parameter. Estimators also have the
methods of scikit-learn's, such as `get_params` and `fit_predict`, which are not repeated here.
"""


def page() -> str:
    """The whole guide."""
    rows = [f"| `{name}` | {_sentence(getattr(ooc_fw, name))} |" for name in ooc_fw.__all__]
    table = "\n".join(["| name | meaning |", "| --- | --- |", *rows])
    parts = [_part(name, getattr(ooc_fw, name)) for name in ooc_fw.__all__]
    return "\n".join([HEAD, table, "", *parts])


def _part(name: str, thing: Any) -> str:
    """What is said of one public name."""
    text, *sections = re.split(r"^(\w+)\n-+\n", _doc(thing), flags=re.MULTILINE)
    is_record = dataclasses.is_dataclass(thing) and "Parameters" not in sections
    lines = [f"## {name}", "", *([] if is_record else _call(name, thing))]
    lines += ["\n\n".join(map(_wrapped, text.strip().split("\n\n"))), ""]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title in ("Parameters", "Attributes"):
            entries = re.findall(r"^(\S.*)\n((?:\n?    .*\n?)+)", body, flags=re.MULTILINE)
            lines += [f"{title}:", "", *(_entry(*entry) for entry in entries), ""]
    if is_record:
        lines += ["Fields:", "", *(_entry(*field) for field in _fields(thing)), ""]
    if isinstance(thing, enum.EnumType):
        lines += [_wrapped(f"Values: {', '.join(f'`{each.name}`' for each in thing)}."), ""]
    elif isinstance(thing, type) and (members := sorted(_members(thing))):
        lines += ["Methods and properties:", "", *members, ""]
    return "\n".join(lines)


def _call(name: str, thing: Any) -> list[str]:
    """How it is called, as a block of code; nothing for what is not to be called."""
    if isinstance(thing, enum.EnumType) or thing is ooc_fw.InputError:
        return []
    call = name + _arguments(thing)
    if len(call) > WIDTH:
        arguments = call.removeprefix(f"{name}(").removesuffix(")")
        call = f"{name}(\n{_wrapped(arguments, '    ', '    ')}\n)"
    return ["```text", call, "```", ""]


def _arguments(function: Any) -> str:
    """The signature without types, which the docstrings tell in words."""
    signature = inspect.signature(function)
    parameters = [
        each.replace(annotation=each.empty)
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def _entry(head: str, text: str) -> str:
    """An item of a list for an entry of a docstring: ``name, name : type`` and its text."""
    names, _, kind = head.partition(" : ")
    shown = ", ".join(f"`{name}`" for name in names.split(", "))
    meaning = f": {text}" if text else ""
    return _wrapped(f"- {shown}{f' ({kind})' if kind else ''}{meaning}", "", "  ")


def _fields(record: Any) -> Iterator[tuple[str, str]]:
    """Name and type of each field of a record, and the comment behind it, if there is one."""
    for base in reversed(record.__mro__[:-1]):
        line = r"^    (\w+): ([^=#\n]+?)(?: = [^#\n]*?)?(?:  # (.*))?$"
        for name, kind, comment in re.findall(line, inspect.getsource(base), flags=re.MULTILINE):
            yield f"{name} : {kind}", comment


def _members(thing: type) -> Iterator[str]:
    """An item for each public method and property with a docstring that is from here."""
    seen = set()
    for base in thing.__mro__:
        for name, value in vars(base).items():
            inner = (getattr(value, each, None) for each in ("fget", "func", "__func__"))
            function = inspect.unwrap(next(filter(None, inner), value))
            if name.startswith("_") or name in seen or not inspect.isfunction(function):
                continue
            seen.add(name)
            if function.__module__.startswith("ooc_fw.") and function.__doc__:
                is_value = hasattr(value, "fget") or hasattr(value, "func")
                call = name if is_value else name + _arguments(getattr(thing, name))
                yield _wrapped(f"- `{call}`: {_sentence(function)}", "", "  ")


def _doc(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").replace("``", "`")


def _sentence(thing: Any) -> str:
    """The first sentence of a docstring, on one line."""
    words = " ".join(_doc(thing).partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", words)[0]


def _wrapped(text: str, first: str = "", later: str = "") -> str:
    words = " ".join(text.split())
    return textwrap.fill(
        words,
        WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    GUIDE.write_text(page(), encoding="utf-8")
