"""Where compiled code is kept: never where somebody else could have written it."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

CALLERS = """
from ooc_fw._core import loading
@loading.njit(cache=True)
def inner(x):
    return x + 1 if x > 0 else 0
@loading.njit(cache=True)
def outer(x):
    return 2 * inner(x)
"""


def run(folder, code, **environment):
    """Standard output and error of a process beside callers.py, whose home cannot be written."""
    (folder / "callers.py").write_text(CALLERS)
    nowhere = {"HOME": "/dev/null/home", "XDG_CACHE_HOME": "/dev/null/cache"}
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | nowhere | environment
    environment.pop("NUMBA_CACHE_DIR", None)
    command, pipes = [sys.executable, "-c", code], {"capture_output": True, "text": True}
    done = subprocess.run(command, env=environment, cwd=folder, check=True, **pipes)
    return done.stdout.strip(), done.stderr


@pytest.mark.process
@pytest.mark.parametrize("foreign", [False, True])
def test_code_is_compiled_in_memory_if_the_place_for_it_is_not_the_users_alone(foreign, tmp_path):
    named = tmp_path / "named"
    named.mkdir()
    named.chmod(0o755 if foreign else 0o777)
    if foreign:
        if os.geteuid() != 0:
            pytest.skip("only root can give a directory away")
        os.chown(named, 65534, -1)
    (tmp_path / "__pycache__").write_text("not a directory")
    out, errors = run(tmp_path, "import callers; print(callers.outer(2))", OOC_FW_CACHE=str(named))
    first, second = errors.splitlines()
    assert out == "6"
    assert f"{named} is not used" in first
    assert "compiled code can be kept nowhere" in second
    assert not [*named.iterdir()]


@pytest.mark.process
def test_kept_code_is_used_again_unless_it_is_damaged(tmp_path):
    """Zeros within the code could crash a process, and an index may end early."""
    kept = tmp_path / "kept"
    code = "import callers; print(callers.outer(2), callers.loading.Compilation.begun)"

    def found():
        return run(tmp_path, code, OOC_FW_CACHE=str(kept))

    assert found() == ("6 2", "")
    assert found() == ("6 0", "")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    for path in kept.rglob("callers.*.nbc"):
        path.write_bytes(path.read_bytes()[:-200] + bytes(100) + path.read_bytes()[-100:])
    assert found() == ("6 2", "")
    for path in kept.rglob("callers.*.nbi"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert found() == ("6 2", "")
    assert found() == ("6 0", "")


@pytest.mark.process
def test_a_full_disk_means_compiling_in_memory(tmp_path):
    """A limit on the size of files stands for a full disk or a quota."""
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)); import callers;"
        "print(callers.outer(2))"
    )
    assert run(tmp_path, code, OOC_FW_CACHE=str(tmp_path / "kept")) == ("6", "")


@pytest.mark.process
def test_no_compiled_function_reads_beyond_an_array():
    """Plain Python checks the indices that compiled code does not; few examples are enough."""
    folder = Path(__file__).parent
    names = [f"test_core_{name}.py" for name in ("maps", "products", "steps", "rules", "text")]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-k", "not float32_gradient and not exponential", *names]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "HYPOTHESIS_PROFILE": "fast"}
    done = subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
