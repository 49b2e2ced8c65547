"""Where compiled code is kept: never where somebody else could have written it."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import ooc_fw
from ooc_fw._core import loading


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    """A copy of the package beside which nothing can be written, by root neither."""
    site = tmp_path_factory.mktemp("site")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(ooc_fw.__file__).parent, site / "ooc_fw", ignore=ignored)
    (site / "ooc_fw" / "_core" / "__pycache__").write_text("not a directory")
    return site


def compile_something(installation, tmp_path, **environment):
    """Standard error of a process that compiles and whose home cannot be written to."""
    code = (
        "import numpy as np; from ooc_fw._core import products; "
        f"assert products.__file__.startswith({str(installation)!r}); "
        "products.row_norms(np.ones(2, np.float32), np.array([0, 2]), True, np.empty(1))"
    )
    kept = {"PYTHONPATH", "OOC_FW_CACHE", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"}
    inherited = {name: value for name, value in os.environ.items() if name not in kept}
    nowhere = {"HOME": "/dev/null/home", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | nowhere | {"PYTHONPATH": str(installation)} | environment,
        cwd=installation,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.process
@pytest.mark.parametrize("is_named", [False, True])
def test_the_directory_that_the_environment_names_or_a_private_temporary_one(
    is_named, installation, tmp_path
):
    named = {"OOC_FW_CACHE": str(tmp_path / "named")} if is_named else {}
    assert compile_something(installation, tmp_path, **named) == ""
    (private,) = tmp_path.iterdir()
    assert (private.name == "named") == is_named
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert list(private.rglob("products.row_norms*"))


@pytest.mark.process
def test_without_any_place_code_is_compiled_in_memory(installation, tmp_path):
    planted, named = tmp_path / f"ooc-fw-compiled-{os.geteuid()}", tmp_path / "named"
    for folder in (planted, named):
        folder.mkdir()
        folder.chmod(0o777)
    first, second = compile_something(installation, tmp_path, OOC_FW_CACHE=str(named)).splitlines()
    assert "OOC_FW_CACHE names" in first
    assert "compiled code can be kept nowhere" in second
    assert not [*planted.iterdir(), *named.iterdir()]


def plant(path, kind):
    if kind == "link":
        (path.parent / "elsewhere").mkdir(mode=0o700)
        path.symlink_to("elsewhere")
    elif kind == "file":
        path.write_text("")
    else:
        path.mkdir(mode=0o750 if kind == "readable" else 0o700)
    if kind == "replaceable":
        path.parent.chmod(0o777)
    elif kind == "foreign":
        if os.geteuid() != 0:
            pytest.skip("only root can give a directory away")
        os.chown(path, 65534, -1)


@pytest.mark.parametrize("kind", ["own", "link", "file", "readable", "foreign", "replaceable"])
def test_what_others_have_planted_is_not_used(kind, tmp_path, monkeypatch, caplog):
    folder = tmp_path / "tmp"
    folder.mkdir(mode=0o755)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    path = folder / f"ooc-fw-compiled-{os.geteuid()}"
    plant(path, kind)
    found = loading._temporary_directory.__wrapped__()
    assert found == (str(path) if kind == "own" else None)
    assert ("kept nowhere" in caplog.text) == (kind != "own")


CALLERS = """
from ooc_fw._core import loading
@loading.njit(cache=True)
def inner(x):
    return x + 1 if x > 0 else 0
@loading.njit(cache=True)
def outer(x):
    return 2 * inner(x)
"""


@pytest.mark.process
def test_kept_code_is_linked_into_a_caller_that_is_compiled(tmp_path):
    (tmp_path / "callers.py").write_text(CALLERS)
    code = (
        "import callers; assert callers.inner(2) == 3;"
        "print(sum(callers.inner.stats.cache_hits.values()), callers.outer(2))"
    )
    environment = os.environ | {"OOC_FW_CACHE": str(tmp_path / "kept")}
    found = []
    for _ in range(3):
        found += subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for path in (tmp_path / "kept").rglob("callers.outer*"):
            path.unlink()
    assert found == ["0 6", "1 6", "1 6"]


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zeros": lambda path: path.write_bytes(
        path.read_bytes()[:-200] + bytes(100) + path.read_bytes()[-100:]
    ),
    "folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.process
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_means_compiling_again(suffix, damage, tmp_path):
    (tmp_path / "callers.py").write_text(CALLERS)
    code = "import callers; print(callers.outer(2), len(callers.outer.stats.cache_hits))"
    environment = os.environ | {"OOC_FW_CACHE": str(tmp_path / "kept")}
    found = []
    for turn in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        found += [done.stdout.strip(), done.stderr]
        for path in (tmp_path / "kept").rglob(f"callers.*.{suffix}") if turn == 0 else ():
            DAMAGE[damage](path)
    assert found[:4] == ["6 0", "", "6 0", ""]
    assert found[4:] == ["6 0" if damage == "folder" else "6 1", ""]


@pytest.mark.process
def test_a_full_cache_means_compiling_in_memory(tmp_path):
    """A limit on the size of files stands for a full disk or a quota."""
    (tmp_path / "callers.py").write_text(CALLERS)
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)); import callers;"
        "print(callers.outer(2))"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        env=os.environ | {"OOC_FW_CACHE": str(tmp_path / "kept")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "6\n", "")
    assert not [*(tmp_path / "kept").rglob("*.tmp*")]


def test_compilation_is_noted():
    double = loading.njit(cache=False)(lambda x: 2 * x)
    notes = []
    with loading.noting_compilation(lambda: notes.append("noted")):
        double(1)
        double(2)
    assert notes == ["noted"]
