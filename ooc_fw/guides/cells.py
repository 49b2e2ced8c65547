"""Cell types, learned from the cells of one donor and judged on those of another.

    python -m ooc_fw.guides.cells

The cells are made up: counts in X and `cell_type` in obs. Results go to a new folder,
cells-example.
"""

import sys

import numpy as np

from ooc_fw.cli.demo import begin_example, end_example

begin_example(__file__)
try:
    import anndata
except ImportError:
    sys.exit("these cells are made by anndata, which is not installed: pip install anndata")
rng = np.random.default_rng(0)
profiles = rng.gamma(0.3, 1.0, 300) * rng.lognormal(0, 0.5, (4, 300))
for path in ("donor-1.h5ad", "donor-2.h5ad"):
    types = rng.choice(4, 1500, p=[0.5, 0.3, 0.15, 0.05])
    depth = rng.lognormal(0, 0.4, (1500, 1)) * rng.lognormal(0, 0.3, 300)
    counts = rng.poisson(depth * profiles[types]).astype(np.float32)
    cell_type = np.array(["T cell", "B cell", "monocyte", "dendritic"])[types]
    cells = anndata.AnnData(counts, {"cell_type": cell_type})
    cells.var_names = [f"gene {k}" for k in range(300)]
    cells.write_h5ad(path)
end_example("""
convert donor-1.h5ad cells.h5 --label cell_type --missing-labels drop --log1p --scale maxabs
info cells.h5
convert donor-2.h5ad test.h5 --like cells.h5 --label cell_type --missing-labels drop
train cells.h5 -o types.h5 --C 10
evaluate types.h5 test.h5
predict types.h5 donor-2.h5ad -o types.csv
importance types.h5 donor-2.h5ad --top 10 --figure cells.svg
""")
