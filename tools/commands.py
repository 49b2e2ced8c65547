"""Write the guide of the commands' options, ``ooc_fw/guides/commands.md``, from their parsers.

    python tools/commands.py

A test fails while the guide is not what this would write.
"""

import argparse
from pathlib import Path

import ooc_fw
from ooc_fw.cli.commands import COMMANDS
from ooc_fw.cli.parser import build_parser

GUIDE = Path(ooc_fw.__file__).parent / "guides" / "commands.md"

HEAD = """# The options of all commands

`ooc-fw COMMAND --help` explains a command and its options. An option stands in several lines where
it takes something else in some commands.
"""

STATUSES = """## Exit statuses

| status | meaning |
| --- | --- |
| 0 | done |
| 1 | the answer is no: `certify` above its tolerance, a damaged file, a row without a prediction |
| 2 | wrong input or usage |
| 3 | failed: disk full, no time, an error of ooc-fw (`OOC_FW_TRACEBACK=1` shows where) |
| 128 + n | signal n: 130 after Ctrl-C, 143 after SIGTERM |
"""


def page() -> str:
    """The whole guide."""
    meanings: dict[tuple[str, str], list[str]] = {}
    for command, option, text in _options():
        meanings.setdefault((option, text), []).append(command)
    rows = [
        f"| {option} | {', '.join(commands)} | {text} |"
        for (option, text), commands in sorted(meanings.items())
    ]
    table = "\n".join(["| option | of | meaning |", "| --- | --- | --- |", *rows])
    return "\n".join([HEAD, table, "", STATUSES])


def _options() -> list[tuple[str, str, str]]:
    """Command, option and meaning, for every option of every command."""
    parsers = next(
        action.choices
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    found = []
    for command in COMMANDS:
        parser = parsers[command]
        for action in parser._actions:
            if action.option_strings and action.help not in (argparse.SUPPRESS, None):
                names = " ".join(f"`{name}`" for name in action.option_strings[::-1])
                text = " ".join(str(action.help).replace("|", "\\|").split())
                found.append((command, names, text.replace("%%", "%")))
    return found


if __name__ == "__main__":
    GUIDE.write_text(page(), encoding="utf-8")
