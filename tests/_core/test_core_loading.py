"""Where compiled code is kept: never where somebody else could have written it."""

import os
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
    inherited = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment = inherited | {"PYTHONDONTWRITEBYTECODE": "1"} | nowhere | environment
    command, pipes = [sys.executable, "-c", code], {"capture_output": True, "text": True}
    done = subprocess.run(command, env=environment, cwd=folder, check=True, **pipes)
    return done.stdout.strip(), done.stderr


@pytest.mark.process
def test_code_is_compiled_in_memory_if_there_is_no_place_for_it(tmp_path):
    (tmp_path / "__pycache__").write_text("not a directory")
    out, errors = run(tmp_path, "import callers; print(callers.outer(2))")
    assert out == "6"
    assert "compiled code can be kept nowhere" in errors
    assert errors.count("\n") == 1


@pytest.mark.process
def test_numba_keeps_the_code_if_it_lacks_the_parts_that_this_takes_faster(tmp_path):
    code = "import numba.core.caching as own; del own.CompileResultCacheImpl; import callers;"
    for _ in range(2):
        out, errors = run(
            tmp_path, code + "print(callers.outer(2), callers.outer.stats.cache_hits)"
        )
        assert errors == ""
    assert out == "6 Counter({(int64,): 1})"


@pytest.mark.process
def test_kept_code_is_used_again_unless_it_is_damaged(tmp_path):
    """Zeros within the code could crash a process, and an index may end early."""
    kept = tmp_path / "kept"
    code = "import callers; print(callers.outer(2), callers.loading.Compilation.begun)"

    def found():
        return run(tmp_path, code, NUMBA_CACHE_DIR=str(kept))

    assert found() == ("6 2", "")
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
    assert run(tmp_path, code, NUMBA_CACHE_DIR=str(tmp_path / "kept")) == ("6", "")


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
