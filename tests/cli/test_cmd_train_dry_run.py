"""`ooc-fw train --dry-run`: the kind of model, a table that adds up, and nothing written."""

import pytest

from ooc_fw.kernels.functions import make_kernel
from tests.support.files import write_dense, write_sparse
from tests.support.methods import grid
from tests.support.reference import make_problem


@pytest.fixture(params=grid(["dense", "sparse"], quick=1))
def data(request, tmp_path):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=200, density=0.5)
    write = write_dense if request.param == "dense" else write_sparse
    return write(tmp_path / "data.h5", problem.X, problem.y)


@pytest.mark.parametrize(
    ("options", "kind", "part"),
    [
        ((), "exact", "kernel values"),
        (("--landmarks", "none"), "exact", "all else"),
        (("--landmarks", 40), "landmarks", "all else"),
        (("--task", "novelty"), "exact", "all else"),
    ],
)
def test_the_terms_add_up_and_nothing_is_written(ooc_fw, data, options, kind, part):
    before = sorted(data.parent.iterdir())
    command = "train", data, "--dry-run", "--memory", "2GiB", *options
    result = ooc_fw(*command, "--json").json()
    assert sum(result["memory"].values()) <= result["memory_limit"] == 2 << 30
    assert (result["kind"], result["landmarks"]) == (kind, 40 if kind == "landmarks" else None)
    assert part in result["memory"]
    text = ooc_fw(*command).out
    assert max(map(len, text.splitlines())) <= 80
    assert result["choice"] in " ".join(text.split())
    assert text.split()[-1] == "MiB"
    assert sorted(data.parent.iterdir()) == before
