"""The Python in the guides, run in a folder with the files that it names."""

from __future__ import annotations

import re
import warnings
from importlib.resources import files
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest

GUIDES = {
    path.name.removesuffix(".md"): path.read_text(encoding="utf-8")
    for path in sorted((files("ooc_fw") / "guides").iterdir(), key=lambda path: path.name)
}
RUN = ("cells", "export", "novelty", "python", "regression")


@pytest.mark.parametrize("name", RUN)
def test_python_in_guides_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    which = rng.integers(0, 2, 80)
    obs = pd.DataFrame(
        {"cell_type": pd.Categorical(np.array(["B", "T"])[which])},
        index=[f"cell {k}" for k in range(80)],
    )
    counts = rng.poisson(1 + 2 * np.eye(2, 6)[which]).astype(np.float32)
    anndata.AnnData(counts, obs=obs).write_h5ad("cells.h5ad")
    space: dict[str, object] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDES[name], flags=re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        with warnings.catch_warnings():
            if "shap" in block:  # which is not ours to mend
                warnings.simplefilter("ignore")
            exec(compile(block, f"{name}.md", "exec"), space)
    if name == "python":
        assert Path("gap.png").stat().st_size > 1000
