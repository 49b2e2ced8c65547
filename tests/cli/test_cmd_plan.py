"""`ooc-fw plan`: the table adds up, the estimate is one, a limit too small is refused."""

import json

import pytest

from ooc_fw.cli.main import main
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.testing.files import write_dense, write_sparse
from ooc_fw.testing.reference import make_problem


@pytest.fixture(params=["dense", "sparse"])
def data(request, tmp_path):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=200, density=0.5)
    write = write_dense if request.param == "dense" else write_sparse
    return str(write(tmp_path / "data.h5", problem.X, problem.y))


def test_plan_as_json(data, capsys):
    assert main(["plan", data, "--memory", "2GiB", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert sum(result["memory"].values()) <= result["memory_limit"] == 2 << 30
    assert 1 <= result["support_at_most"] <= result["max_vertices"] == 200
    assert result["kernel_values_per_second"] > 0
    assert result["seconds_at_most"] > 0


@pytest.mark.parametrize(
    ("arguments", "n_bytes"),
    [
        (["--memory", "2GiB"], 2),
        (["--memory", "2GiB", "--C", "10000"], 4),
        (["--memory", "2GiB", "--class-weight=-1=10000"], 4),
        ([], 4),
        (["--C", "1e9"], 8),
    ],
)
def test_plan_knows_the_precision_of_kernel_values(data, capsys, arguments, n_bytes):
    assert main(["plan", data, "--json", "--gamma", "0.5", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["kernel_value_bytes"] == n_bytes


def test_plan_for_people(data, capsys):
    assert main(["plan", data, "--memory", "2GiB", "--gamma", "0.5"]) == 0
    text = capsys.readouterr().out
    assert "limit 2 GiB" in text
    assert "kernel values between active rows" in text


def test_a_limit_that_cannot_be_met(data, capsys):
    assert main(["plan", data, "--memory", "10MiB"]) == 2
    assert "the smallest limit that would do is" in capsys.readouterr().err


def test_what_is_no_size(data, capsys):
    assert main(["train", data, "--memory", "plenty"]) == 2
    assert "plenty" in capsys.readouterr().err
