"""A process that bears commands, and small files and disks for them."""

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import libsvm_lines
from tests.support.nursery import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def long_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LIBSVM text whose conversion takes some tenths of a second."""
    X = np.random.default_rng(0).integers(-999, 999, (20_000, 12)) / 1000
    path = tmp_path_factory.mktemp("long") / "long.txt"
    path.write_text(libsvm_lines(X, np.sign(X[:, 0] + X[:, 1] + 1e-6)))
    return path


@pytest.fixture
def full_device(tmp_path: Path) -> Path:
    """A device on which there is never any room, as ``/dev/full``."""
    path = tmp_path / "full"
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 7))
        path.open("w").close()
    except OSError:
        pytest.skip("devices are not allowed here")
    return path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mount a file system of some bytes: ``small_disk(1 << 20)``."""
    folder = tmp_path / "disk"

    def mount(n_bytes: int) -> Path:
        folder.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting a tmpfs is not allowed here")
        return folder

    yield mount
    while os.path.ismount(folder):
        subprocess.run(["umount", str(folder)], check=True)
