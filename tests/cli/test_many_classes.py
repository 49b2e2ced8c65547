"""A thousand classes, from a file to each command that knows the classes."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from ooc_fw import FrankWolfeSVC, InputError, load_model, open_dataset
from ooc_fw.options import ModelOptions
from ooc_fw.solver.plan import Session
from ooc_fw.training.choice import plan_model
from ooc_fw.training.prepare import prepare

N_CLASSES = 1000


def rows(n_each=4, seed=0):
    """Rows near the points of a grid, each of which is a class with a name."""
    grid = np.stack(np.meshgrid(*3 * [np.arange(10)]), axis=-1).reshape(-1, 3)
    codes = np.repeat(np.arange(N_CLASSES), n_each)
    rng = np.random.default_rng(seed)
    X = (grid[codes] + 0.1 * rng.normal(size=(len(codes), 3))).astype(np.float32)
    names = np.array([f"k{code:04}" for code in codes])
    order = rng.permutation(len(codes))
    return X[order], names[order]


def test_commands_take_a_thousand_classes(ooc_fw, here):
    X, names = rows()
    np.save("x.npy", X)
    np.save("y.npy", names)
    few = "--landmarks 200 --gamma 0.3 --C 10 --tol 0.5 --probability"
    found = ooc_fw("train", "x.npy", "--labels", "y.npy", "-o", "k.h5", *few.split(), "--json")
    assert found.json()["kind"] == "landmarks"
    model = load_model("k.h5")
    assert model.classes.tolist() == sorted({*names})
    values = model.decision_function(X)
    predicted = model.predict(X)
    assert values.shape == (len(X), N_CLASSES)
    assert (predicted == model.classes[values.argmax(axis=1)]).all()
    right = (predicted == names).mean()
    assert right > 0.9
    chances = model.predict_proba(X)
    assert chances.sum(axis=1) == pytest.approx(1.0)
    measured = ooc_fw("evaluate", "k.h5", "x.npy", "--labels", "y.npy", "--json").json()
    assert measured["accuracy"] == pytest.approx(right)
    assert np.trace(measured["confusion"]) == round(right * len(X))
    ooc_fw("predict", "k.h5", "x.npy", "-o", "labels.txt")
    assert Path("labels.txt").read_text().split()[-len(X) :] == predicted.tolist()
    ooc_fw("export", "k.h5", "k.onnx")
    graph = onnxruntime.InferenceSession("k.onnx")
    assert (graph.run(["label"], {"X": X.astype(float)})[0] == predicted).mean() > 0.999
    assert len(ooc_fw("info", "k.h5", "--json").json()["classes"]) == N_CLASSES
    ooc_fw("certify", "k.h5", "x.npy", "--labels", "y.npy")


def test_many_classes_have_landmarks_unless_pairs_are_asked_for():
    X, names = rows()
    prepared = prepare(open_dataset(X, names), "classification", ModelOptions())
    plan = plan_model(prepared.problem, ModelOptions(), Session())
    assert plan.landmarks == len(X)
    assert "with 1000 classes, --exact would train 499,500 pairs" in plan.kind
    pairs = plan_model(prepared.problem, ModelOptions(exact=True), Session())
    assert pairs.landmarks is None
    more = np.append(names, "one more")
    own = FrankWolfeSVC(exact=True)
    with pytest.raises(InputError, match="1001 classes has 500,500 classifiers"):
        own.fit(np.vstack([X, X[:1]]), more)


def test_more_labels_than_a_model_may_have_are_refused():
    X = np.eye(10_001, 2)
    with pytest.raises(InputError, match="more than 10000 different labels"):
        prepare(open_dataset(X, np.arange(10_001)), "classification", ModelOptions())
