"""Conversions of small tables."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.convert.converted import Contents, convert_files, read


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[Any, Contents]]:
    """Convert inputs, or the text of a CSV table, to out.h5 without shuffling: report, contents."""

    def run(inputs: Any, output: str = "out.h5", **options: Any) -> tuple[Any, Contents]:
        if isinstance(inputs, (str, bytes)):
            data = inputs if isinstance(inputs, bytes) else inputs.encode()
            inputs = tmp_path / "data.csv"
            inputs.write_bytes(data)
        inputs = inputs if isinstance(inputs, list) else [inputs]
        report = convert_files(inputs, tmp_path / output, **{"shuffle": False, **options})
        return report, read(tmp_path / output)

    return run
