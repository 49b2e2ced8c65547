"""Models as ONNX graphs, for programs without this package.

ONNX has an operator for support vector machines, but in float32. Here the kernel is a graph of
double-precision operators, so that decision values agree with the model to many digits.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ooc_fw.data.labels import Classes
from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array
from ooc_fw.kernels.functions import Kernel
from ooc_fw.model.trained import Trained
from ooc_fw.system.errors import InputError

OPSET = 17  # version of the operators, from 2022


def to_onnx(model: Any) -> bytes:
    """Write a model as an ONNX graph, as ``ooc-fw export`` does.

    Parameters
    ----------
    model : Model or estimator
        A trained model, or an estimator that has one.

    Returns
    -------
    bytes
        The content of an ONNX file. Its input ``X`` is float64, of shape (n_rows, n_features): rows
        before scaling. The outputs are ``label``, ``decision`` as in `Model.decision_function`,
        and, if the model gives probabilities, ``probabilities`` of shape (n_rows, n_classes). The
        only output of a regression is ``prediction``. Outputs for rows that are not finite are
        undefined. The metadata ``feature_names`` and ``class_names`` are lists in JSON.

    Raises
    ------
    InputError
        If the package onnx is missing, or if the model has more than 2 GB.

    Examples
    --------
    >>> from ooc_fw import FrankWolfeSVC
    >>> model = FrankWolfeSVC().fit([[0.0], [1.0]], ["no", "yes"])
    >>> b"ooc-fw" in to_onnx(model)
    True
    """
    model = getattr(model, "model_", model)
    graph = _Graph()
    # The file holds all vectors with their weights, the scaling and the centre.
    numbers = (len(model.support_vectors) + 4) * (model.n_features + len(model.classifiers) + 1)
    if 8 * numbers >= 2**31 - 2**20:
        raise InputError(
            "the model has too many support vectors or columns for an ONNX file, which holds dense "
            "rows in 2 GB at most; train one with landmarks (--landmarks N)"
        )
    decision = _decisions(model, _scaled(model, _Tensor(graph, "X")))
    if model.task == "regression":
        assert model.spread is not None
        prediction = decision * model.spread + float(model.offset or 0.0)
        graph.output("prediction", prediction.apply("Squeeze", np.array([1])), n_axes=1)
        return graph.serialise(model)
    if len(model.classifiers) > 1:
        scores = decision if model.decision == "ovr" else _votes(model, decision)
        place = scores.apply("ArgMax", axis=1, keepdims=0)
        shown = decision
    else:
        shown = decision.apply("Squeeze", np.array([1]))
        above = "GreaterOrEqual" if model.task == "novelty" else "Greater"
        place = shown.apply(above, model.threshold or 0.0).apply("Cast", to=_INT64)
    values = Classes(model.classes)
    classes: AnyArray = np.array(values.names, dtype=object)
    kind = _STRING
    whole = None if values.are_words else model.classes.astype(np.int64)
    if whole is not None and whole.tolist() == model.classes.tolist():
        classes = whole
        kind = _INT64
    elif values.numbers is not None:
        classes = values.numbers
        kind = _DOUBLE
    graph.output("label", graph.add("Gather", classes, place), n_axes=1, kind=kind)
    graph.output("decision", shown, n_axes=min(2, len(model.classifiers)))
    if model.calibrated:
        graph.output("probabilities", _probabilities(model, decision), n_axes=2)
    return graph.serialise(model)


_FLOAT = 1  # codes of ONNX for types of elements
_INT64 = 7
_STRING = 8
_DOUBLE = 11

_Value: TypeAlias = "_Tensor | AnyArray | float"  # a result in a graph, or a constant


class _Graph:
    """Nodes, constants and outputs in the order in which they are added."""

    def __init__(self) -> None:
        try:
            import onnx
        except ModuleNotFoundError:
            raise InputError("to write ONNX: pip install 'ooc-fw[onnx]'") from None
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._outputs: list[Any] = []
        self._names = (f"t{k}" for k in itertools.count())

    def add(self, operator: str, *inputs: _Value, **attributes: Any) -> _Tensor:
        """Add an operator; returns its result."""
        names = []
        for value in inputs:
            if isinstance(value, _Tensor):
                names.append(value.name)
                continue
            names.append(next(self._names))
            constant = self._onnx.numpy_helper.from_array(np.asarray(value), names[-1])
            self._constants.append(constant)
        result = _Tensor(self, next(self._names))
        node = self._onnx.helper.make_node(operator, names, [result.name], **attributes)
        self._nodes.append(node)
        return result

    def output(self, name: str, result: _Tensor, *, n_axes: int, kind: int = _DOUBLE) -> None:
        """Make a result with one or two axes an output with elements of the type `kind`."""
        helper = self._onnx.helper
        shape = ["n_rows", None][:n_axes]
        self._nodes.append(helper.make_node("Identity", [result.name], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def serialise(self, model: Trained) -> bytes:
        """The bytes of the file of the graph; its input is ``X``."""
        helper = self._onnx.helper
        inputs = [helper.make_tensor_value_info("X", _DOUBLE, ["n_rows", model.n_features])]
        onnx = helper.make_model(
            helper.make_graph(self._nodes, "ooc-fw", inputs, self._outputs, self._constants),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=8,
            producer_name="ooc-fw",
        )
        classes = [] if model.task == "regression" else model.classes.tolist()
        names = {"feature_names": model.columns, "class_names": classes}
        known = {name: json.dumps(value, default=float) for name, value in names.items() if value}
        helper.set_model_props(onnx, known)
        self._onnx.checker.check_model(onnx)
        content: bytes = onnx.SerializeToString()
        return content


def _operator(name: str) -> Callable[[_Tensor, _Value], _Tensor]:
    return lambda left, right: left.apply(name, right)


@dataclass(frozen=True)
class _Tensor:
    """A named result in a graph; arithmetic with it adds operators to the graph."""

    graph: _Graph
    name: str

    def apply(self, operator: str, *others: _Value, **attributes: Any) -> _Tensor:
        """Add an operator with this tensor as its first input."""
        return self.graph.add(operator, self, *others, **attributes)

    __add__ = _operator("Add")
    __sub__ = _operator("Sub")
    __mul__ = _operator("Mul")
    __truediv__ = _operator("Div")
    __matmul__ = _operator("MatMul")

    def __neg__(self) -> _Tensor:
        return self.apply("Neg")

    def __rsub__(self, other: float) -> _Tensor:
        return self.graph.add("Sub", other, self)

    def __rtruediv__(self, other: float) -> _Tensor:
        return self.graph.add("Div", other, self)

    def sum(self, axis: int, keepdims: int = 1) -> _Tensor:
        """Sums along an axis."""
        return self.apply("ReduceSum", np.array([axis]), keepdims=keepdims)


def _scaled(model: Trained, rows: _Tensor) -> _Tensor:
    """Rows as the kernel sees them: scaled and rounded to float32, as in training, in float64."""
    scaling = model.scaling
    if scaling.log1p:
        rows = _log1p(rows)
    if scaling.offset is not None and scaling.factor is not None:
        rows = (rows - scaling.offset) * scaling.factor
    if scaling.normalize:
        norm = (rows * rows).sum(1).apply("Sqrt")
        rows = rows / norm.apply("Equal", np.array(0.0)).apply("Where", np.array(1.0), norm)
    rows = rows.apply("Cast", to=_FLOAT)
    return rows.apply("Cast", to=_DOUBLE)


def _log1p(rows: _Tensor) -> _Tensor:
    """log(1 + x), accurate for small x: the division removes the rounding of 1 + x (Kahan)."""
    moved = rows + 1.0
    found: _Tensor = moved.apply("Log") * rows / (moved - 1.0)
    return moved.apply("Equal", np.array(1.0)).apply("Where", rows, found)


def _decisions(model: Trained, rows: _Tensor) -> _Tensor:
    """Decision values, shape (n_rows, n_classifiers)."""
    vectors = model.support_vectors
    dense = vectors.toarray() if isinstance(vectors, CSRRows) else vectors
    weights = model.weights()
    bias = weights.sum(axis=0)
    if model.task == "novelty" and model.offset is not None:
        bias = np.full(1, -model.offset)
    values = _kernel_values(model.kernel, rows, np.ascontiguousarray(dense))
    decisions: _Tensor = values @ weights + bias
    return decisions


def _kernel_values(kernel: Kernel, rows: _Tensor, vectors: AnyArray) -> _Tensor:
    """Kernel values of all rows with all vectors, shape (n_rows, n_support)."""
    exact = vectors.astype(np.float64)
    if kernel.shift_invariant:
        # Subtract the mean of the vectors: distances do not change, and lose fewer digits.
        centre = exact.mean(axis=0)
        rows = rows - centre
        exact = exact - centre
        largest = np.square(exact).sum(axis=1).max()
        # Below this exponent, float64 products keep ten digits of a distance. Else use differences.
        if kernel.name == "laplacian" or kernel.gamma * largest > 1e4:
            apart = rows.apply("Unsqueeze", np.array([1])) - exact
            sizes = apart.apply("Abs") if kernel.uses_distance else apart * apart
            distances: _Tensor = sizes.sum(2, keepdims=0)
            return (distances * -kernel.gamma).apply("Exp")
    products: _Tensor = rows @ exact.T.copy()
    if kernel.name == "linear":
        return products
    if kernel.name == "poly":
        return (products * kernel.gamma + kernel.coef0).apply("Pow", float(kernel.degree))
    norms: Float64Array = np.square(exact).sum(axis=1)
    squares = rows.apply("ReduceSumSquare", axes=[1], keepdims=1)
    if kernel.name == "rbf":
        distance = (squares + norms - products * 2.0).apply("Max", 0.0)
        return (distance * -kernel.gamma).apply("Exp")
    least = np.finfo(np.float64).tiny
    assert kernel.name == "tanimoto"
    return products / (squares + norms - products).apply("Max", least)


def _votes(model: Trained, decision: _Tensor) -> _Tensor:
    """Scores of the classes, as in `ooc_fw.model.machines.class_scores`."""
    negative, positive = np.eye(len(model.classes))[model.sides.T]
    won = decision.apply("Greater", 0.0).apply("Cast", to=_DOUBLE)
    sums: _Tensor = decision @ (positive - negative)
    votes: _Tensor = won @ positive + (1.0 - won) @ negative
    return votes + sums / ((sums.apply("Abs") + 1.0) * 3.0)


def _probabilities(model: Trained, decision: _Tensor) -> _Tensor:
    """Probabilities of the classes, as in `ooc_fw.model.machines.class_probabilities`."""
    exponent = decision * model.numbers("sigmoid_a") + model.numbers("sigmoid_b")
    if model.decision == "ovr":
        # log(1 / (1 + exp(z))) without overflow
        small = (-exponent.apply("Abs")).apply("Exp")
        logs = -(exponent.apply("Max", 0.0) + (small + 1.0).apply("Log"))
        return logs.apply("Softmax", axis=1)
    of_larger = (-exponent).apply("Sigmoid")
    if len(model.classes) == 2:
        return exponent.apply("Sigmoid").apply("Concat", of_larger, axis=1)
    negative, positive = np.eye(len(model.classes))[model.sides.T]
    of_larger = of_larger.apply("Clip", 1e-7, 1 - 1e-7)
    inverse: _Tensor = (1.0 / of_larger) @ positive + (1.0 / (1.0 - of_larger)) @ negative
    shares: _Tensor = 1.0 / (inverse - (len(model.classes) - 2.0))
    return shares / shares.sum(1)
