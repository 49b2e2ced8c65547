"""Kernel support vector machines on data far larger than memory, with a certified duality gap.

From Python::

    model = ooc_fw.FrankWolfeSVC(C=10).fit("train.h5")     # the file may exceed the memory
    model.predict("test.h5")

Without scikit-learn, use `open_dataset`, `make_kernel`, `solve` and `Model`. Callbacks of `solve`
receive a `SolverState`, which describes the progress of the run.

Map of the code
---------------
Sources read rows, kernels turn rows into numbers, and the compiled core works on these numbers. A
package imports only packages that are listed below it (``tests/test_layers.py`` checks this).

================  =================================================================================
``estimators/``   `FrankWolfeSVC`, `FrankWolfeOneClass`, `FrankWolfeSVR`, for scikit-learn
``cli/``          the command line: ``main.py``, ``commands.py`` and a module for each command
``datafiles.py``  `convert` and `split`, which write data files
``training/``     from data to a model: `fit`, its tasks, pairs of classes, streams and `tune`
``report/``       progress, logs and figures of runs
``model/``        a trained model: its record and file, predictions, probabilities, ONNX graphs
``landmarks/``    models that learn from all rows and give weights to a few; each reading has a gap
``solver/``       `solve`: the outer loop (``loop.py``), step rules, oracles, blocks, the active set
``conversion/``   conversion of text, tables and arrays to HDF5: parsing, scaling, shuffling
``certificate/``  the gap over all rows, and the reading that computes it
``problem.py``    the dual problem of the L2-SVM: objective, gap and stopping tests
``kernels/``      kernel functions; blocks of kernel values, with bounds on their rounding errors
``data/``         rows and their sources: how they are opened, viewed, scaled and summarised
``_core/``        the compiled functions; only this package imports numba
``options.py``    every option of training and conversion: its default, help, limits and checks
``system/``       files, signals, memory and threads; `InputError`, the error for wrong input
``guides/``       the texts that ``ooc-fw help TOPIC`` prints
================  =================================================================================

``ooc-fw train`` starts in ``cli/train.py``, which calls `fit` (``training/fit.py``). For an exact
model this calls `train_exact` (``training/pairs.py``), `solve_problem` (``solver/loop.py``) and
`certify` (``certificate/sweep.py``); for landmarks `solve_landmarks` (``landmarks/solve.py``).

Before a run, ``training/choice.py`` chooses the kind of model, ``system/memory.py`` divides
``--memory``, and ``data/opening.py`` opens the files. ``training/checkpoint.py`` says what is in a
checkpoint, ``certificate/sweep.py`` and ``landmarks/certificate.py`` how a gap allows for rounding.
``guides/contributing.md`` shows how to add a step rule and a source.

Glossary
--------
=================  ================================================================================
vertex             a row of the data, seen as a corner of the simplex in which the weights lie
active set         the vertices in memory, with their weights, gradients and kernel values
support vector     a vertex with positive weight
gradient           (Qa)_i of row i: its label times its decision value, plus a_i / C_i
rho                a'Qa: twice the objective, and the margin before the model is scaled
block              rows that move together while the rest of the model is one vertex for each label
objective gap      (P - D) / P of primal and dual objective: the best one is lower by no more
relative gap       1 - min_i (Qa)_i / rho, over all rows (certified) or over drawn rows (sampled)
oracle             the search for new vertices: for the row of least gradient, or for many violators
step rule          the way a step moves the weights: toward, away, pairwise, PARTAN or corrective
look               one search of the oracle: it computes the gradients of a block of rows
violator           a row whose gradient is below rho (1 - relative tolerance)
reading            all rows are read once, in blocks, from the file or from memory
work               the number of kernel values, divided by rows times support vectors
certificate        the gap over all rows from a reading, plus a bound on all rounding errors
binary classifier  a model of two classes. For more classes, an exact model has one classifier for
                   each pair of classes, a landmark model one for each class against the rest
landmark           a row to which a landmark model gives a weight, of either sign
span               all models with weights on the same landmarks; a landmark gap is to the best one
checkpoint         a file with the model of an unfinished run, from which the run can resume
warm start         the start of a run from the weights of an earlier model
=================  ================================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from ooc_fw.data.opening import open_dataset as open_dataset
    from ooc_fw.data.opening import train_test_split as train_test_split
    from ooc_fw.datafiles import convert as convert
    from ooc_fw.datafiles import split as split
    from ooc_fw.estimators import FrankWolfeOneClass as FrankWolfeOneClass
    from ooc_fw.estimators import FrankWolfeSVC as FrankWolfeSVC
    from ooc_fw.estimators import FrankWolfeSVR as FrankWolfeSVR
    from ooc_fw.kernels.functions import make_kernel as make_kernel
    from ooc_fw.model.evaluation import evaluate as evaluate
    from ooc_fw.model.importance import Importance as Importance
    from ooc_fw.model.onnx import to_onnx as to_onnx
    from ooc_fw.model.record import Model as Model
    from ooc_fw.model.record import load_model as load_model
    from ooc_fw.options import TrainOptions as TrainOptions
    from ooc_fw.solver.loop import solve as solve
    from ooc_fw.solver.state import Solution as Solution
    from ooc_fw.solver.state import SolverState as SolverState
    from ooc_fw.solver.state import Status as Status
    from ooc_fw.system.errors import InputError as InputError
    from ooc_fw.training.tuning import tune as tune

# Module -> its public names. Loaded on first use: importing the package stays cheap.
_MODULES = {
    "data.opening": "open_dataset train_test_split",
    "datafiles": "convert split",
    "estimators": "FrankWolfeOneClass FrankWolfeSVC FrankWolfeSVR",
    "kernels.functions": "make_kernel",
    "model.evaluation": "evaluate",
    "model.importance": "Importance",
    "model.onnx": "to_onnx",
    "model.record": "Model load_model",
    "options": "TrainOptions",
    "solver.loop": "solve",
    "solver.state": "Solution SolverState Status",
    "system.errors": "InputError",
    "training.tuning": "tune",
}
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    try:
        module = _PUBLIC[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
