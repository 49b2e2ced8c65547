"""Kernel support vector machines on data far larger than memory, with a certified duality gap.

From Python::

    model = ooc_fw.FrankWolfeSVC(C=10).fit("train.h5")     # nothing is loaded whole
    model.predict("test.h5")

or, without scikit-learn, `open_dataset`, `make_kernel`, `solve` and `Model`, which is what the
command ``ooc-fw train`` calls. Callbacks of `solve` are told how the run stands by a `SolverState`.

Map of the code
---------------
Disk yields rows, kernels turn rows into numbers, the core sees only numbers. A module imports the
ones below it, never back (``tests/test_layers.py`` holds this).

=================  ================================================================================
``cli/``           the command line: ``main.py`` and one module a command
``estimators.py``  `FrankWolfeSVC`, the scikit-learn face
``progress.py``    callbacks that show or log a run
``report.py``      logs of runs as a page of HTML
``figures.py``     their figures, by matplotlib
``runlog.py``      what such a log says of a run
``solver.py``      `solve`: the one outer loop; stopping, certification
``one_versus_one`` a machine for each pair of classes, from one reading of the data
``tuning.py``      `tune`: which C and gamma, by validation
``streaming.py``   `Stream`: a machine trained by rows that come by once
``held_out.py``    sigmoids from decision values of rows that no machine has seen
``model.py``       a trained model: file, decision function
``calibration.py`` probabilities of decision values: sigmoids, pairwise coupling
``checkpoint.py``  the state of a run in a file, to go on from
``certificate.py`` the exact duality gap: one sweep over all rows
``screening.py``   which rows a later sweep need not look at, and why
``lmo.py``         linear minimization oracles: which rows to step toward
``steps.py``       step rules: how to move the weights
``active_set.py``  rows, weights and gradient of the vertices held in RAM
``kept.py``        states kept on the way, and which is the best where a run stops early
``newton.py``      the minimum on few vertices, by linear systems
``kernel_rows.py`` kernel values between vertices: all, or a cache of rows
``problem.py``     the L2-SVM dual: objective, gap, stopping tests
``decisions.py``   decision values in two stages: float32 with a bound, float64
``distinct.py``    equal rows of a block, found once
``engine.py``      blocks of kernel values and kernel sums, on all threads
``products.py``    dense products with the same bits in every block
``blas.py``        BLAS at one thread while engines are open
``kernels.py``     the kernels: product, map, diagonal, rounding bound
``stats.py``       one-pass statistics of a file: mean, sigma^2, classes
``parallel.py``    one ordered map over parts of a file, here or by Dask
``sampling.py``    which rows to read next; integers only
``sources/``       rows from HDF5, .npy, memory maps, arrays, Dask
``prep/``          text and tables to HDF5: parse, scale, shuffle; a look at a file before
``memory.py``      the plan that divides a memory limit
``_core/``         the compiled functions, the only importer of numba
``scaling.py``     per-column scaling, as stored in files
``ranges.py``      ranges and moments of columns; a scaling from them
``labels.py``      which label values a file can hold
``files.py``       where results go: files written atomically, streams, what is refused
``scratch.py``     directories for rows set aside, and what killed runs left of them
``growing.py``     arrays that grow, the active set's buffers
``interrupt.py``   Ctrl-C and SIGTERM between iterations
``deadline.py``    the time limit, and what the end of a run will take
``pairs.py``       pairs of classes: their order, their union, their vote
``penalties.py``   penalties of rows: class and sample weights
``attributes.py``  text in the attributes of HDF5 files
``state.py``       records: options, progress, solution
``rows.py``        dense and CSR rows in RAM
``errors.py``      `InputError`: a user's mistake, in one sentence
``testing/``       contract tests, strategies and reference solvers for tests
=================  ================================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ooc_fw.certificate import certify as certify
    from ooc_fw.errors import InputError as InputError
    from ooc_fw.estimators import FrankWolfeSVC as FrankWolfeSVC
    from ooc_fw.kernels import make_kernel as make_kernel
    from ooc_fw.model import Model as Model
    from ooc_fw.model import load_model as load_model
    from ooc_fw.solver import solve as solve
    from ooc_fw.sources import open_source as open_dataset  # noqa: F401
    from ooc_fw.sources import train_test_split as train_test_split
    from ooc_fw.state import Solution as Solution
    from ooc_fw.state import SolverState as SolverState
    from ooc_fw.state import Status as Status
    from ooc_fw.state import TrainOptions as TrainOptions
    from ooc_fw.tuning import tune as tune

# Public name -> (module, name there). Loaded on first use: importing the package stays cheap.
_PUBLIC = {
    "FrankWolfeSVC": ("estimators", "FrankWolfeSVC"),
    "InputError": ("errors", "InputError"),
    "Model": ("model", "Model"),
    "Solution": ("state", "Solution"),
    "SolverState": ("state", "SolverState"),
    "Status": ("state", "Status"),
    "TrainOptions": ("state", "TrainOptions"),
    "certify": ("certificate", "certify"),
    "load_model": ("model", "load_model"),
    "make_kernel": ("kernels", "make_kernel"),
    "open_dataset": ("sources", "open_source"),
    "solve": ("solver", "solve"),
    "train_test_split": ("sources", "train_test_split"),
    "tune": ("tuning", "tune"),
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    try:
        module, attribute = _PUBLIC[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
