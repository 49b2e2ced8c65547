"""Compare the models that two checkouts of the project train: objective, gap and accuracy.

``python -m bench.same DIR OTHER`` runs some forty small trainings by the code of either checkout:
methods x oracles x kernels x storages x classes x limits. Models are as good if the objective of
each classifier is lower or at most 1e-4 larger, the certified gap is within the tolerance of the
run, and the accuracy on held-out rows is at most 0.1 points lower. Exit status 1 says that some
are not, and which. The runs rest on the command line and on scikit-learn's interface for a few.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
OTHERS = ("resumed", "tuned", "estimators")
TUNE = ("--C", "0.25,1,4,16", "--gamma", "0.1,1")

OBJECTIVE_TOL = 1e-4  # relative
ACCURACY_TOL = 1e-3  # a tenth of a point

ESTIMATORS = """
import json
import numpy as np
from ooc_fw import FrankWolfeSVC
X, y = np.load("rings.npy"), np.load("rings-y.npy")
test, truth = np.load("rings-test.npy"), np.load("rings-test-y.npy")
found = {}
def note(name, model, truth=truth):
    found[name] = {
        "objective": [one.dual or one.rho / 2 for one in model.model_.classifiers],
        "accuracy": float((model.predict(test) == truth).mean()),
    }
rng = np.random.default_rng(0)
weights = rng.uniform(0.5, 2, len(y))
note("estimator", FrankWolfeSVC(C=10, random_state=0).fit(X, y))
note("estimator-weights", FrankWolfeSVC(C=10, random_state=0).fit(X, y, sample_weight=weights))
note("estimator-probability", FrankWolfeSVC(C=1, random_state=0, probability=True).fit(X, y))
many, others = np.digitize(X[:, 0], [-0.5, 0.5]), np.digitize(test[:, 0], [-0.5, 0.5])
balanced = FrankWolfeSVC(C=5, random_state=0, class_weight="balanced")
note("estimator-classes", balanced.fit(X, many), others)
stream = FrankWolfeSVC(C=10, gamma=1.0, random_state=0)
for k in range(0, len(y), 700):
    stream.partial_fit(X[k:k+700], y[k:k+700], classes=np.unique(y))
note("partial-fit", stream)
print(json.dumps(found))
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.same", description=__doc__)
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT")
    known = [*RUNS, *OTHERS]
    parser.add_argument("--runs", nargs="+", choices=known, default=known, metavar="RUN")
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
    (_, expected), *others = found.items()
    n_worse = 0
    for other, results in others:
        for name in results.keys() & expected.keys():
            why = worse(expected[name], results[name])
            n_worse += bool(why)
            print(f"{other}: {name} is {'; '.join(why) or 'as good'}")
    print(f"{len(expected)} runs, {n_worse} of them worse")
    return 1 if n_worse else 0


def worse(expected: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """In which ways a run is worse than it was."""
    if "failed" in expected:
        return []
    if "failed" in result:
        return [f"failed: {result['failed']}"]
    why = []
    pairs = zip(expected.get("objective", ()), result.get("objective", ()), strict=True)
    excess = max((new / old - 1 for old, new in pairs if old and new), default=0.0)
    if excess > OBJECTIVE_TOL:
        why.append(f"of an objective larger by {excess:.2g}")
    gap = result.get("gap")
    # By other stopping tests, and after so many iterations, gaps vary a little.
    allowed = max(expected.get("tol") or 0.0, 1.2 * (expected.get("gap") or 0.0))
    if result.get("status") != expected.get("status"):
        why.append(f"{result.get('status')}, not {expected.get('status')}")
    if expected.get("gap") is not None and (gap is None or gap > allowed):
        why.append(f"of gap {gap}, where {allowed:.3g} is allowed")
    if result["accuracy"] < expected["accuracy"] - ACCURACY_TOL:
        why.append(f"of accuracy {result['accuracy']:.4f}, not {expected['accuracy']:.4f}")
    return why


def command(checkout: Path, folder: Path, *arguments: str) -> str:
    """Run ooc-fw of a checkout in a folder; what it printed."""
    return python(checkout, folder, "-m", "ooc_fw", *arguments)


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
        raise RuntimeError(done.stderr.strip()[-500:])
    return done.stdout


def record(folder: Path, checkout: Path, runs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What each run gives."""
    results: dict[str, dict[str, Any]] = {}
    for name in runs:
        try:
            if name == "estimators":
                results |= json.loads(python(checkout, folder, "-c", ESTIMATORS))
            elif name == "resumed":
                results[name] = resumed(folder, checkout)
            elif name == "tuned":
                command(checkout, folder, "tune", "rings.h5", *TUNE, "-o", "t.h5", "--quiet")
                results[name] = {"accuracy": accuracy(folder, checkout, "t.h5", "rings-test.txt")}
            else:
                results[name] = trained(folder, checkout, *RUNS[name])
        except RuntimeError as error:
            results[name] = {"failed": str(error)}
        print(name, results.get(name, ""), flush=True)
    return results


def trained(folder: Path, checkout: Path, data: str, *options: str) -> dict[str, Any]:
    """Objectives, gap and accuracy of a model."""
    same = ("train", data, "-o", "m.h5", "--json", "--quiet")
    said = json.loads(command(checkout, folder, *same, *options))
    each = said.get("classifiers") or [said]
    test = "a1a.t.h5" if data == "a1a.h5" else f"{data.split('.')[0].split('-')[0]}-test.txt"
    return {
        "objective": [one.get("objective") for one in each],
        "gap": said["certified_gap"],
        "tol": said.get("tol"),
        "status": said["status"],
        "accuracy": accuracy(folder, checkout, said["model"], test),
    }


def accuracy(folder: Path, checkout: Path, model: str, test: str) -> float:
    """Accuracy of a model on rows that it was not trained on."""
    printed = command(checkout, folder, "evaluate", model, test, "--json", "--quiet")
    return float(json.loads(printed)["accuracy"])


def resumed(folder: Path, checkout: Path) -> dict[str, Any]:
    """A run stopped after some iterations, and resumed."""
    same = ("noisy.h5", "--tol", "1e-2")
    trained(folder, checkout, *same, "--max-iter", "5", "--checkpoint", "r.ckpt")
    return trained(folder, checkout, *same, "--resume", "r.ckpt")


def write_data(folder: Path, checkout: Path) -> None:
    """Write the data of all runs; conversion is part of what is compared."""
    samples = next(path.parent for path in (checkout / "ooc_fw").rglob("a1a.xz"))
    command(checkout, folder, "convert", str(samples / "a1a.xz"), "a1a.h5", "--quiet")
    like = ("--like", "a1a.h5", "--quiet")
    command(checkout, folder, "convert", str(samples / "a1a.t.xz"), "a1a.t.h5", *like)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(18_000, 6))
    y = np.where(np.abs(np.linalg.norm(x, axis=1) - 2.3) < 0.55, 1, -1)
    write_texts(folder, "rings", x, y, 12_000)
    for name, option in (("rings.h5", "--dense"), ("rings-csr.h5", "--sparse")):
        command(checkout, folder, "convert", "rings.txt", name, option, "--quiet")
    raw = np.column_stack([rng.integers(0, 20_000, 6000), rng.uniform(-3000, 3000, 6000)])
    write_texts(folder, "raw", raw, np.where(raw[:, 1] > 0, 1, -1), 3000)
    command(checkout, folder, "convert", "raw.txt", "raw.h5", "--quiet")
    noisy = rng.normal(size=(15_000, 12))
    y = np.where(noisy[:, 0] + rng.normal(size=len(noisy)) > 0, 1, -1)
    write_texts(folder, "noisy", noisy, y, 9000)
    command(checkout, folder, "convert", "noisy.txt", "noisy.h5", "--scale", "standard", "--quiet")
    shells = rng.normal(size=(8_000, 4))
    y = np.digitize(np.linalg.norm(shells, axis=1), [1.2, 1.8, 2.4])
    write_texts(folder, "shells", shells, y, 4000)
    command(checkout, folder, "convert", "shells.txt", "shells.h5", "--quiet")


def write_texts(folder: Path, name: str, x: np.ndarray, y: np.ndarray, n_train: int) -> None:
    """Write the first rows as training data and the others as test data, in both forms."""
    for part, rows in (("", slice(n_train)), ("-test", slice(n_train, None))):
        np.save(folder / f"{name}{part}.npy", x[rows].astype(np.float32))
        np.save(folder / f"{name}{part}-y.npy", y[rows])
        with (folder / f"{name}{part}.txt").open("w") as file:
            for row, label in zip(x[rows], y[rows], strict=True):
                pairs = " ".join(f"{k}:{value:.6g}" for k, value in enumerate(row, 1))
                file.write(f"{label} {pairs}\n")


if __name__ == "__main__":
    sys.exit(main())
