"""Models as ONNX graphs, for runtimes without this package.

ONNX has an operator for support vector machines, in float32. Here the kernel is a graph of
double-precision products, exponentials and powers, so that decision values are those of the model
to many digits.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array
from ooc_fw.kernels.functions import Kernel
from ooc_fw.model.pairs import class_pairs
from ooc_fw.model.probabilities import CLIP
from ooc_fw.system.errors import InputError

if TYPE_CHECKING:
    from ooc_fw.model.record import Model

OPSET, IR_VERSION = 17, 8
"""Versions of the operators and of the file, of 2022."""

MAX_COUPLED = 40
"""Classes up to which probabilities of pairs are coupled in the graph."""

_LARGEST_FILE = 2**31 - 1  # bytes of a file without external data


def to_onnx(model: Model, *, double_input: bool = True) -> bytes:
    """ONNX graph of a model, as the bytes of its file.

    The input ``X``, of shape (n_rows, n_features), has rows before scaling. The outputs are
    ``label``, ``decision`` as of `Model.decision_function`, and, if the model is calibrated,
    ``probabilities`` of shape (n_rows, n_classes). That of regression is ``prediction``.

    Parameters
    ----------
    model : Model
        Of any kernel that is not a function.
    double_input : bool
        Whether ``X`` is of float64, else of float32.

    Raises
    ------
    InputError
        For a kernel that is a function; where the package onnx is missing; probabilities of more
        than `MAX_COUPLED` classes of an exact model; a model of more than 2 GB.
    """
    graph = _Graph()
    rows = _scaled(graph, model)
    decision = _decisions(graph, model, rows)
    if model.task == "regression":
        assert model.spread is not None
        found = graph.add("Mul", decision, graph.constant(model.spread))
        found = graph.add("Add", found, graph.constant(float(model.offset or 0.0)))
        found = graph.add("Squeeze", found, graph.constant(np.array([1])))
        outputs = [("prediction", found, np.dtype(np.float64), 1)]
        return graph.serialise(model.n_features, double_input, outputs)
    several = len(model.classifiers) > 1
    if several:
        scores = decision if model.decision == "ovr" else _votes(graph, model, decision)
        place = graph.add("ArgMax", scores, axis=1, keepdims=0)
        shown = decision
    else:
        shown = graph.add("Squeeze", decision, graph.constant(np.array([1])))
        above = "GreaterOrEqual" if model.one_class else "Greater"
        place = graph.add("Cast", graph.add(above, shown, graph.constant(0.0)), to=7)
    classes = _class_values(model)
    outputs = [("label", graph.add("Gather", graph.constant(classes), place), classes.dtype, 1)]
    outputs.append(("decision", shown, np.dtype(np.float64), 2 if several else 1))
    if model.calibrated:
        found = _probabilities(graph, model, decision)
        outputs.append(("probabilities", found, np.dtype(np.float64), 2))
    return graph.serialise(model.n_features, double_input, outputs)


class _Graph:
    """Nodes and constants in the order in which they are added."""

    def __init__(self) -> None:
        try:
            import onnx
        except ImportError:
            raise InputError("to write ONNX: pip install 'ooc-fw[onnx]'") from None
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._names = (f"t{k}" for k in itertools.count())

    def constant(self, value: AnyArray | float) -> str:
        """Name of a constant; numbers are of float64."""
        name = next(self._names)
        array = np.asarray(value)
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Name of the result of an operator."""
        name = next(self._names)
        self._nodes.append(self._onnx.helper.make_node(operator, inputs, [name], **attributes))
        return name

    def serialise(
        self, n_features: int, double_input: bool, outputs: Sequence[tuple[str, str, Any, int]]
    ) -> bytes:
        """The file: outputs are a name, the result it stands for, a type and dimensions."""
        helper, types = self._onnx.helper, self._onnx.TensorProto
        for name, result, _, _ in outputs:
            self._nodes.append(helper.make_node("Identity", [result], [name]))
        kinds = {"f": types.DOUBLE, "i": types.INT64, "U": types.STRING, "O": types.STRING}
        given = types.DOUBLE if double_input else types.FLOAT
        graph = helper.make_graph(
            self._nodes,
            "ooc-fw",
            [helper.make_tensor_value_info("X", given, ["n_rows", n_features])],
            [
                helper.make_tensor_value_info(name, kinds[dtype.kind], ["n_rows", None][:n_dims])
                for name, _, dtype, n_dims in outputs
            ],
            self._constants,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="ooc-fw",
        )
        if model.ByteSize() > _LARGEST_FILE:
            raise InputError(
                "the model has too many support vectors for one ONNX file of 2 GB; train one with "
                "landmarks (--landmarks N)"
            )
        self._onnx.checker.check_model(model)
        content: bytes = model.SerializeToString()
        return content


def _class_values(model: Model) -> AnyArray:
    """Classes: whole numbers, other numbers, or words."""
    values = model.classes
    if values.dtype.kind != "f":
        return values.astype(object)
    whole = values.astype(np.int64)
    return whole if (whole == values).all() else values


def _scaled(graph: _Graph, model: Model) -> str:
    """Rows as the kernel sees them: scaled, rounded to float32 as those of training, float64."""
    rows, scaling = graph.add("Cast", "X", to=11), model.scaling
    if scaling is not None and scaling.log1p:
        rows = graph.add("Log", graph.add("Add", rows, graph.constant(1.0)))
    if scaling is not None and scaling.offset is not None and scaling.factor is not None:
        rows = graph.add("Sub", rows, graph.constant(scaling.offset))
        rows = graph.add("Mul", rows, graph.constant(scaling.factor))
    return graph.add("Cast", graph.add("Cast", rows, to=1), to=11)


def _decisions(graph: _Graph, model: Model, rows: str) -> str:
    """Decision values, shape (n_rows, n_classifiers)."""
    vectors = model.support_vectors
    dense = vectors.toarray() if isinstance(vectors, CSRRows) else vectors
    weights = np.zeros((len(dense), len(model.classifiers)))
    for column, own in enumerate(model.classifiers):
        scale = 1.0 if model.one_class else own.rho
        weights[own.sv, column] = own.alpha * own.labels / scale
    bias = weights.sum(axis=0)
    if model.one_class and model.offset is not None:
        bias = np.full(1, -model.offset)
    values = _kernel_values(graph, model.kernel, rows, np.ascontiguousarray(dense))
    sums = graph.add("MatMul", values, graph.constant(weights))
    return graph.add("Add", sums, graph.constant(bias))


def _kernel_values(graph: _Graph, kernel: Kernel, rows: str, vectors: AnyArray) -> str:
    """Kernel values of all rows with all vectors, shape (n_rows, n_support)."""
    exact = vectors.astype(np.float64)
    if kernel.name == "rbf":
        # Moved to the mean of the vectors, which leaves distances as they are, and their digits.
        centre = exact.mean(axis=0)
        rows, exact = graph.add("Sub", rows, graph.constant(centre)), exact - centre
    norms = graph.constant(np.square(exact).sum(axis=1))
    squares = graph.add("ReduceSumSquare", rows, axes=[1], keepdims=1)
    if kernel.name == "laplacian":
        stored, middle = graph.constant(exact), graph.constant(np.array([1]))
        apart = graph.add("Sub", graph.add("Unsqueeze", rows, middle), stored)
        last = graph.constant(np.array([2]))
        distance = graph.add("ReduceSum", graph.add("Abs", apart), last, keepdims=0)
        return graph.add("Exp", graph.add("Mul", distance, graph.constant(-kernel.gamma)))
    products = graph.add("MatMul", rows, graph.constant(exact.T.copy()))
    if kernel.name == "linear":
        return products
    if kernel.name == "poly":
        base = graph.add("Mul", products, graph.constant(kernel.gamma))
        base = graph.add("Add", base, graph.constant(kernel.coef0))
        return graph.add("Pow", base, graph.constant(float(kernel.degree)))
    both = graph.add("Add", squares, norms)
    if kernel.name == "rbf":
        distance = graph.add("Sub", both, graph.add("Mul", products, graph.constant(2.0)))
        distance = graph.add("Max", distance, graph.constant(0.0))
        return graph.add("Exp", graph.add("Mul", distance, graph.constant(-kernel.gamma)))
    least = graph.constant(np.finfo(np.float64).tiny)
    if kernel.name == "cosine":
        size = graph.add("Mul", graph.add("Sqrt", squares), graph.add("Sqrt", norms))
        return graph.add("Div", products, graph.add("Max", size, least))
    if kernel.name == "tanimoto":
        return graph.add("Div", products, graph.add("Max", graph.add("Sub", both, products), least))
    raise InputError(
        f"a kernel that is called {kernel.name!r} cannot be written as an ONNX graph; train with "
        f"one of the kernels that have a name"
    )


def _votes(graph: _Graph, model: Model, decision: str) -> str:
    """Scores of the classes, as `ooc_fw.model.pairs.class_scores` gives them."""
    pairs = class_pairs(len(model.classes))
    positive = np.zeros((len(pairs), len(model.classes)))
    negative = np.zeros_like(positive)
    for k, (i, j) in enumerate(pairs):
        negative[k, i] = positive[k, j] = 1
    won = graph.add("Cast", graph.add("Greater", decision, graph.constant(0.0)), to=11)
    lost = graph.add("Sub", graph.constant(1.0), won)
    votes = graph.add(
        "Add",
        graph.add("MatMul", won, graph.constant(positive)),
        graph.add("MatMul", lost, graph.constant(negative)),
    )
    sums = graph.add("MatMul", decision, graph.constant(positive - negative))
    size = graph.add("Add", graph.add("Abs", sums), graph.constant(1.0))
    share = graph.add("Div", sums, graph.add("Mul", size, graph.constant(3.0)))
    return graph.add("Add", votes, share)


def _probabilities(graph: _Graph, model: Model, decision: str) -> str:
    """Probabilities of the classes, as `ooc_fw.model.probabilities.class_probabilities`."""
    slopes = np.array([own.sigmoid_a for own in model.classifiers], dtype=np.float64)
    shifts = np.array([own.sigmoid_b for own in model.classifiers], dtype=np.float64)
    exponent = graph.add("Mul", decision, graph.constant(slopes))
    exponent = graph.add("Add", exponent, graph.constant(shifts))
    if model.decision == "ovr":
        # log(1 / (1 + exp(z))) without overflow
        small = graph.add("Exp", graph.add("Neg", graph.add("Abs", exponent)))
        rest = graph.add("Log", graph.add("Add", small, graph.constant(1.0)))
        above = graph.add("Max", exponent, graph.constant(0.0))
        logs = graph.add("Neg", graph.add("Add", above, rest))
        return graph.add("Softmax", logs, axis=1)
    positive = graph.add("Sigmoid", graph.add("Neg", exponent))
    if len(model.classes) == 2:
        return graph.add("Concat", graph.add("Sigmoid", exponent), positive, axis=1)
    return _coupled(graph, positive, len(model.classes))


def _coupled(graph: _Graph, of_pairs: str, n_classes: int) -> str:
    """Probabilities of classes from those of pairs, as `ooc_fw.model.probabilities.couple`.

    With p_last = 1 - the sum of the others, the quadratic has no constraint left, and its matrix A
    is positive definite: Gaussian elimination needs no pivots.
    """
    if n_classes > MAX_COUPLED:
        raise InputError(
            f"probabilities of {n_classes} classes are coupled by a linear system too large for an "
            f"ONNX graph, which takes {MAX_COUPLED} classes; leave the probabilities out "
            f"(--no-probabilities), or train with landmarks"
        )
    m = n_classes - 1
    basis = np.vstack([np.eye(m), -np.ones((1, m))])  # p = basis y + e_last
    matrices = np.zeros((3, len(class_pairs(n_classes)), m * (m + 1)))
    for k, (i, j) in enumerate(class_pairs(n_classes)):
        for part, entries in enumerate(((i, i, 1.0), (j, j, 1.0), (i, j, -1.0))):
            Q = np.zeros((n_classes, n_classes))
            Q[entries[0], entries[1]] += entries[2]
            if part == 2:
                Q[entries[1], entries[0]] += entries[2]
            A, right = basis.T @ Q @ basis, -basis.T @ Q[:, -1]
            matrices[part, k] = np.hstack([A, right[:, None]]).reshape(-1)
    low, high = graph.constant(CLIP), graph.constant(1 - CLIP)
    r = graph.add("Clip", of_pairs, low, high)
    rest = graph.add("Sub", graph.constant(1.0), r)
    terms = [graph.add("Mul", *pair) for pair in ((r, r), (rest, rest), (r, rest))]
    parts = [
        graph.add("MatMul", term, graph.constant(matrix))
        for term, matrix in zip(terms, matrices, strict=True)
    ]
    system = graph.add("Sum", *parts)
    system = graph.add("Reshape", system, graph.constant(np.array([-1, m, m + 1])))
    for k in range(m):
        row = _slice(graph, system, 1, k)
        row = graph.add("Div", row, _slice(graph, row, 2, k))
        others: Float64Array = np.ones((1, m, 1))
        others[0, k] = 0  # the pivot row itself becomes `row`
        own = graph.constant(1 - others)
        column = graph.add("Mul", _slice(graph, system, 2, k), graph.constant(others))
        kept = graph.add("Mul", system, graph.constant(others))
        system = graph.add("Sub", kept, graph.add("Mul", column, row))
        system = graph.add("Add", system, graph.add("Mul", own, row))
    y = graph.add("Squeeze", _slice(graph, system, 2, m), graph.constant(np.array([2])))
    last = graph.add(
        "Sub",
        graph.constant(1.0),
        graph.add("ReduceSum", y, graph.constant(np.array([1])), keepdims=1),
    )
    p = graph.add("Max", graph.add("Concat", y, last, axis=1), graph.constant(0.0))
    return graph.add("Div", p, graph.add("ReduceSum", p, graph.constant(np.array([1])), keepdims=1))


def _slice(graph: _Graph, tensor: str, axis: int, place: int) -> str:
    """One row or column of the matrices of a tensor, which keeps its dimensions."""
    bounds = [np.array([number]) for number in (place, place + 1, axis)]
    return graph.add("Slice", tensor, *(graph.constant(own) for own in bounds))
