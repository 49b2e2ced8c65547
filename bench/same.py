"""Compare the models that two checkouts of the project train, bit by bit.

``python -m bench.same DIR OTHER`` runs some thirty small trainings by the code of either checkout,
methods x oracles x kernels x storages x classes x limits, and compares weights, support vectors,
rho, gaps, counts and predictions. Exit status 1 says that some differ, and which.

A change that is meant to leave the numbers alone is tried with it. The runs rest on the command
line and on what model files hold, and on scikit-learn's interface for a few.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np

RUNS: dict[str, tuple[str, ...]] = {
    # name: data and options of ooc-fw train
    "corrective": ("a1a.h5",),
    "corrective-full": ("a1a.h5", "--lmo", "full"),
    "corrective-C100": ("a1a.h5", "--C", "100", "--tol", "1e-5"),
    "fw-full": ("a1a.h5", "--method", "fw", "--tol", "1e-1", "--max-iter", "3000"),
    "mfw-full": ("a1a.h5", "--method", "mfw", "--tol", "1e-2"),
    "swap-full": ("a1a.h5", "--method", "swap", "--tol", "1e-2"),
    "swap2-full": ("a1a.h5", "--method", "swap2"),
    "partan-full": ("a1a.h5", "--method", "partan", "--tol", "1e-1", "--max-iter", "3000"),
    "cvm-sampled": ("a1a.h5", "--method", "cvm", "--tol", "1e-2"),
    "fw-sampled": ("rings.h5", "--method", "fw", "--lmo", "sampled", "--max-iter", "2000"),
    "swap2-sampled": ("rings.h5", "--method", "swap2", "--lmo", "sampled", "--tol", "1e-2"),
    "partan-sampled": ("rings.h5", "--method", "partan", "--lmo", "sampled", "--max-iter", "500"),
    "linear": ("rings.h5", "--kernel", "linear", "--tol", "1e-2"),
    "poly": ("rings.h5", "--kernel", "poly", "--degree", "3", "--coef0", "1", "--gamma", "0.1"),
    "laplacian": ("rings.h5", "--kernel", "laplacian", "--seed", "3"),
    "dense": ("rings.h5", "--C", "10"),
    "csr": ("rings-csr.h5", "--C", "10"),
    "npy": ("rings.npy", "--labels", "rings-y.npy", "--C", "10"),
    "raw-columns": ("raw.h5", "--C", "10", "--gamma", "0.5"),
    "raw-linear": ("raw.h5", "--kernel", "linear", "--C", "0.001", "--tol", "1e-1"),
    "noisy-16-bit": ("noisy.h5", "--memory", "600MiB", "--tol", "1e-2"),
    "noisy-cached-rows": ("noisy.h5", "--memory", "400MiB", "--tol", "1e-2", "--max-iter", "12"),
    "iterations": ("noisy.h5", "--max-iter", "4"),
    "classes": ("shells.h5", "--C", "10"),
    "classes-sampled": ("shells.h5", "--method", "swap2", "--max-iter", "300"),
    "probability": ("shells.h5", "--probability"),
    "balanced": ("rings.h5", "--class-weight", "balanced"),
    "absolute": ("rings.h5", "--stopping", "absolute", "--tol", "1e-7"),
    "meb": ("rings.h5", "--stopping", "meb", "--tol", "1e-6", "--seed", "5"),
    "uncertified": ("rings.h5", "--no-certify"),
    "dask": ("rings.h5", "--dask", "threads"),
    "stream": ("rings.txt", "--stream", "--gamma", "1", "--C", "10"),
    "stream-limit": ("rings.txt", "--stream", "--gamma", "1", "--keep", "200"),
}
IGNORED = ("seconds", "crc", "signal", "created")  # parts of names of attributes that tell no model


ESTIMATORS = """
import sys, json, hashlib
import numpy as np
from ooc_fw import FrankWolfeSVC
X, y = np.load("rings.npy"), np.load("rings-y.npy")
found = {}
def note(name, model):
    values, labels = model.decision_function(X[:500]), model.predict(X[:500])
    found[name] = hashlib.sha256(values.tobytes() + labels.tobytes()).hexdigest()
rng = np.random.default_rng(0)
weights = rng.uniform(0.5, 2, len(y))
note("estimator", FrankWolfeSVC(C=10, random_state=0).fit(X, y))
note("estimator-weights", FrankWolfeSVC(C=10, random_state=0).fit(X, y, sample_weight=weights))
note("estimator-probability", FrankWolfeSVC(C=1, random_state=0, probability=True).fit(X, y))
many = np.digitize(X[:, 0], [-0.5, 0.5])
note("estimator-classes", FrankWolfeSVC(C=5, random_state=0, class_weight="balanced").fit(X, many))
stream = FrankWolfeSVC(C=10, gamma=1.0, random_state=0)
for k in range(0, len(y), 700):
    stream.partial_fit(X[k:k+700], y[k:k+700], classes=np.unique(y))
note("partial-fit", stream)
print(json.dumps(found))
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.same", description="Compare the models of two checkouts, bit by bit."
    )
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT")
    parser.add_argument("--runs", nargs="+", choices=sorted(RUNS), default=list(RUNS))
    parser.add_argument("--output", type=Path, help="write what was found, as JSON")
    parser.add_argument("--against", type=Path, help="JSON of an earlier --output")
    arguments = parser.parse_args(argv)
    found = {}
    if arguments.against:
        found[str(arguments.against)] = json.loads(arguments.against.read_text())
    for checkout in arguments.checkouts:
        with tempfile.TemporaryDirectory() as folder:
            write_data(Path(folder), checkout.resolve())
            found[str(checkout)] = record(Path(folder), checkout.resolve(), arguments.runs)
    if arguments.output:
        arguments.output.write_text(json.dumps(found[str(arguments.checkouts[-1])], indent=1))
    (first, expected), *others = found.items()
    differing = 0
    for other, results in others:
        for name, result in results.items():
            if name in expected and result != expected[name]:
                differing += 1
                keys = [
                    key
                    for key in sorted({*result, *expected[name]})
                    if result.get(key) != expected[name].get(key)
                ]
                print(f"{name}: {first} and {other} differ in {', '.join(keys)}")
    print(f"{len(expected)} runs, {differing} of them differ")
    return 1 if differing else 0


def command(checkout: Path, folder: Path, *arguments: str) -> str:
    """Run ooc-fw of a checkout in a folder; what it printed."""
    return python(checkout, folder, "-m", "ooc_fw.cli.main", *arguments)


def python(checkout: Path, folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 3):  # 3: ended early, as it should
        raise RuntimeError(f"{' '.join(arguments)} in {checkout}: {done.stderr}")
    return done.stdout


def record(folder: Path, checkout: Path, runs: Sequence[str]) -> dict[str, dict[str, object]]:
    """What each run gives."""
    results = {}
    for name in runs:
        data, *options = RUNS[name]
        model = f"{name}.model.h5"
        printed = command(
            checkout, folder, "train", data, "-o", model, "--json", "--quiet", *options
        )
        results[name] = {**counts(printed), **digest(folder / model)}
        test = data if data.endswith(".txt") else data.replace("a1a.h5", "a1a.t.h5")
        predicted = command(checkout, folder, "predict", model, test, "--decision")
        results[name]["predictions"] = sha(predicted.encode())
        print(name, results[name].get("status"), results[name].get("n_support"), flush=True)
    if set(runs) == set(RUNS):
        results["resumed"] = resumed(folder, checkout)
        results["tuned"] = tuned(folder, checkout)
        results["estimators"] = json.loads(python(checkout, folder, "-c", ESTIMATORS))
    return results


def resumed(folder: Path, checkout: Path) -> dict[str, object]:
    """A run stopped after some iterations, and resumed."""
    same = ("train", "noisy.h5", "--tol", "1e-2", "-o", "r.h5", "--json", "--quiet")
    command(checkout, folder, *same, "--max-iter", "5", "--checkpoint", "r.ckpt")
    printed = command(checkout, folder, *same, "--resume", "r.ckpt")
    return {**counts(printed), **digest(folder / "r.h5")}


def tuned(folder: Path, checkout: Path) -> dict[str, object]:
    """The choice of C and gamma, and the model of it."""
    command(
        checkout, folder, "tune", "rings.h5", "--C", "2^-2..2^4:2", "--gamma", "0.1,1",
        "-o", "t.h5", "--points", "t.json", "--quiet",
    )  # fmt: skip
    return {**digest(folder / "t.h5")}


def counts(printed: str) -> dict[str, object]:
    """Numbers that ``ooc-fw train --json`` prints and that no clock decides."""
    names = ("status", "n_support", "certified_gap", "sampled_gap", "rho", "objective")
    said = json.loads(printed)
    return {name: said.get(name) for name in (*names, "iterations", "kernel_evaluations")}


def digest(model: Path) -> dict[str, object]:
    """Content of a model file: a hash of each data set, attributes as they are."""
    found: dict[str, object] = {}

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = sha(repr(item.shape).encode() + np.ascontiguousarray(item[()]).tobytes())
        for key, value in item.attrs.items():
            if not any(part in key for part in IGNORED):
                found[f"{name}@{key}"] = repr(value)

    with h5py.File(model) as file:
        visit("", file)
        file.visititems(visit)
    return found


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def write_data(folder: Path, checkout: Path) -> None:
    """Write the data of all runs; conversion is part of what is compared."""
    samples = next(path.parent for path in (checkout / "ooc_fw").rglob("a1a.xz"))
    command(checkout, folder, "convert", str(samples / "a1a.xz"), "a1a.h5", "--quiet")
    command(
        checkout, folder, "convert", str(samples / "a1a.t.xz"), "a1a.t.h5", "--like", "a1a.h5",
        "--quiet",
    )  # fmt: skip
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12_000, 6))
    y = np.where(np.abs(np.linalg.norm(x, axis=1) - 2.3) < 0.55, 1, -1)
    np.save(folder / "rings.npy", x.astype(np.float32))
    np.save(folder / "rings-y.npy", y)
    write_text(folder / "rings.txt", x, y)
    for name, option in (("rings.h5", "--dense"), ("rings-csr.h5", "--sparse")):
        command(checkout, folder, "convert", "rings.txt", name, option, "--quiet")
    raw = np.column_stack([rng.integers(0, 20_000, 3000), rng.uniform(-3000, 3000, 3000)])
    write_text(folder / "raw.txt", raw, np.where(raw[:, 1] > 0, 1, -1))
    command(checkout, folder, "convert", "raw.txt", "raw.h5", "--quiet")
    noisy = rng.normal(size=(9_000, 12))
    y = np.where(noisy[:, 0] + rng.normal(size=len(noisy)) > 0, 1, -1)
    write_text(folder / "noisy.txt", noisy, y)
    command(checkout, folder, "convert", "noisy.txt", "noisy.h5", "--scale", "standard", "--quiet")
    shells = rng.normal(size=(4_000, 4))
    y = np.digitize(np.linalg.norm(shells, axis=1), [1.2, 1.8, 2.4])
    write_text(folder / "shells.txt", shells, y)
    command(checkout, folder, "convert", "shells.txt", "shells.h5", "--quiet")


def write_text(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    """Write rows as LIBSVM text."""
    with path.open("w") as file:
        for row, label in zip(x, y, strict=True):
            pairs = " ".join(f"{k}:{value:.6g}" for k, value in enumerate(row, 1))
            file.write(f"{label} {pairs}\n")


if __name__ == "__main__":
    sys.exit(main())
