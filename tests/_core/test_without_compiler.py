"""The compiled functions as plain Python, which checks indices that compiled code does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
TWINS = ("test_core_maps.py", "test_core_products.py", "test_core_steps.py")
SLOW = ("float32_gradient", "exponential_of_a_line")


@pytest.mark.process
def test_twins_agree_with_the_compiler_off():
    """On few examples: what is sought is an index out of bounds."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-k", " and ".join(f"not {name}" for name in SLOW)]
    done = subprocess.run(
        [*command, *(str(FOLDER / name) for name in TWINS)],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1", "HYPOTHESIS_PROFILE": "fast"},
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
