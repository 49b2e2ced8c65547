"""Conversions of small tables."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ooc_fw import convert
from tests.conversion.converted import Contents, read


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[Any, Contents]]:
    """Convert inputs, or a text, to out.h5 without shuffling: report, contents."""

    def run(inputs: Any, output: str = "out.h5", **options: Any) -> tuple[Any, Contents]:
        if isinstance(inputs, str):
            (tmp_path / "data.csv").write_text(inputs, encoding="utf-8")
            inputs = tmp_path / "data.csv"
        report = convert(inputs, tmp_path / output, **{"shuffle": False, **options})
        return report, read(tmp_path / output)

    return run
