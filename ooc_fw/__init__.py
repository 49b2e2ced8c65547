"""Kernel support vector machines on data far larger than memory, with a certified duality gap.

From Python::

    model = ooc_fw.FrankWolfeSVC(C=10).fit("train.h5")     # nothing is loaded whole
    model.predict("test.h5")

or, without scikit-learn, `open_dataset`, `make_kernel`, `solve` and `Model`. Callbacks of `solve`
are told how the run stands by a `SolverState`.

Map of the code
---------------
Disk yields rows, kernels turn rows into numbers, the core sees only numbers. A package imports the
ones below it, never back (``tests/test_layers.py`` holds this).

================  =================================================================================
``estimators/``   `FrankWolfeSVC`, `FrankWolfeOneClass`, `FrankWolfeSVR`, for scikit-learn
``cli/``          the command line: ``main.py``, ``commands.py`` and a module for each command
``training/``     from data to a model: `fit` and its tasks, pairs of classes, streams, `tune`
``report/``       progress, log and figures of a run
``model/``        a trained model: its record and file, predictions, probabilities, ONNX
``landmarks/``    landmark models: all rows in the span of some, with a gap from every pass
``solver/``       `solve`: the outer loop (``loop.py``), steps, oracles, the active set
``convert/``      text, tables and arrays to HDF5: parse, scale, shuffle
``certificate/``  the exact duality gap: a pass over all rows; rows that it need not look at
``problem.py``    the L2-SVM dual: objective, gap, stopping tests
``kernels/``      kernels, and blocks of kernel values with bounds on their rounding
``data/``         rows and where they come from: sources, views, scaling, statistics
``_core/``        the compiled functions, the only importer of numba
``options.py``    the options of training and conversion: default, help, limits and checks
``system/``       files, signals, memory and threads; `InputError` for wrong input
``guides/``       what ``ooc-fw help TOPIC`` prints; examples that run as they are
================  =================================================================================

``ooc-fw train`` goes from ``cli/train.py`` to `fit` (``training/fit.py``), and for an exact model
on to `train_exact` (``training/pairs.py``), `solve_problem` (``solver/loop.py``) and `certify`
(``certificate/sweep.py``), or with landmarks to `solve_landmarks` (``landmarks/solve.py``).

What is decided before a run stands in ``training/choice.py``, what is in a checkpoint in
``training/checkpoint.py``, how ``--memory`` is divided in ``system/memory.py``, which files are
read as they are in ``data/opening.py``, and which rounding is in a gap in ``certificate/sweep.py``
and ``landmarks/certificate.py``. ``guides/contributing.md`` adds a rule and a source.

Glossary
--------
=================  ================================================================================
vertex             a row of the data as a corner of the unit simplex
active set         the vertices in memory, with their weights, gradient and kernel values
support vector     a vertex of positive weight
gradient           (Qa)_i of a row: its label times the decision value, plus a_i / C_i
rho                a'Qa, twice the objective; the margin of the model before scaling
relative gap       1 - min_i (Qa)_i / rho over all rows (certified) or those drawn (sampled)
oracle             what proposes rows as vertices: that of least gradient, or many violators
step rule          what moves the weights: toward, away, pairwise, PARTAN, corrective
look               the gradients of a block of rows, among which the oracle finds violators
violator           a row whose gradient is below rho (1 - relative tolerance)
pass               one reading of all rows, in blocks; the passes of a run are its kernel values,
                   divided by rows times support vectors
certificate        the gap of all rows, from a pass, with the bound of all rounding added
screening          a bound that excuses rows from the next pass
binary classifier  the model of two classes; of more there is one for each pair, or with landmarks
                   one for each class against the rest
landmark           a row of the data on which a landmark model has a weight of either sign
span               all weights of given landmarks; gaps of landmark models are within it
checkpoint         the model of a run that is not over, from which it is resumed
warm start         weights of an earlier model that a run begins with
=================  ================================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from ooc_fw.data.opening import open_source as open_dataset  # noqa: F401
    from ooc_fw.data.opening import train_test_split as train_test_split
    from ooc_fw.estimators import FrankWolfeOneClass as FrankWolfeOneClass
    from ooc_fw.estimators import FrankWolfeSVC as FrankWolfeSVC
    from ooc_fw.estimators import FrankWolfeSVR as FrankWolfeSVR
    from ooc_fw.kernels.functions import make_kernel as make_kernel
    from ooc_fw.model.importance import Importance as Importance
    from ooc_fw.model.record import Model as Model
    from ooc_fw.model.record import load_model as load_model
    from ooc_fw.options import TrainOptions as TrainOptions
    from ooc_fw.solver.loop import solve as solve
    from ooc_fw.solver.state import Solution as Solution
    from ooc_fw.solver.state import SolverState as SolverState
    from ooc_fw.solver.state import Status as Status
    from ooc_fw.system.errors import InputError as InputError
    from ooc_fw.training.tuning import tune as tune

# Public name -> (module, name there). Loaded on first use: importing the package stays cheap.
_PUBLIC = {
    "FrankWolfeOneClass": ("estimators", "FrankWolfeOneClass"),
    "FrankWolfeSVC": ("estimators", "FrankWolfeSVC"),
    "FrankWolfeSVR": ("estimators", "FrankWolfeSVR"),
    "Importance": ("model.importance", "Importance"),
    "InputError": ("system.errors", "InputError"),
    "Model": ("model.record", "Model"),
    "Solution": ("solver.state", "Solution"),
    "SolverState": ("solver.state", "SolverState"),
    "Status": ("solver.state", "Status"),
    "TrainOptions": ("options", "TrainOptions"),
    "load_model": ("model.record", "load_model"),
    "make_kernel": ("kernels.functions", "make_kernel"),
    "open_dataset": ("data.opening", "open_source"),
    "solve": ("solver.loop", "solve"),
    "train_test_split": ("data.opening", "train_test_split"),
    "tune": ("training.tuning", "tune"),
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
    return [*__all__, "__version__"]
