import numpy as np
import pytest

from ooc_fw.model.record import load_model


def test_table_and_figure(ooc_fw, model_file, data_file, tmp_path):
    pytest.importorskip("matplotlib")
    figure = tmp_path / "bars.png"
    shown = ooc_fw("importance", model_file, data_file, "--top", 2, "--figure", figure, "--quiet")
    found = load_model(model_file).importance(data_file)
    title, head, *lines = shown.done().out.splitlines()
    assert title.startswith("change of the decision value for 3 by one standard deviation")
    assert head.split() == ["column", "importance"]
    assert [line.split()[0] for line in lines] == [found.names[k] for k in found.order[:2]]
    values = [float(line.split()[1]) for line in lines]
    np.testing.assert_allclose(values, found.values[found.order[:2]], rtol=1e-3)
    assert figure.stat().st_size > 1000


def test_rows(ooc_fw, model_file, data_file):
    command = "importance", model_file, data_file, "--json", "--quiet"
    assert ooc_fw(*command, "--rows", 50).json()["n_rows"] == 50
