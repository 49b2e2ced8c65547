"""Compare the models that two checkouts of the project train: objective, gap and accuracy.

``python -m bench.same DIR OTHER`` runs small trainings by the code of either checkout. A model is
as good if the objective of each classifier is lower or at most 1e-4 larger, the certified gap is
within the tolerance of the run, and the accuracy on held-out rows is at most 0.1 points lower.
Exit status 1 says that some are not, and which.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

OBJECTIVE_TOL, ACCURACY_TOL = 1e-4, 1e-3

RUNS: dict[str, tuple[str, ...]] = {
    # name: data and options of ooc-fw train
    "corrective": ("a1a.h5",),
    "swap-full": ("a1a.h5", "--method", "swap", "--lmo", "full", "--tol", "1e-2"),
    "swap2-sampled": ("rings.h5", "--method", "swap2", "--lmo", "sampled", "--tol", "1e-2"),
    "partan-sampled": ("rings.h5", "--method", "partan", "--lmo", "sampled", "--max-iter", "500"),
    "cvm-sampled": ("a1a.h5", "--method", "cvm", "--lmo", "sampled", "--tol", "1e-2"),
    "linear": ("rings.h5", "--kernel", "linear", "--tol", "1e-2"),
    "poly": ("rings.h5", "--kernel", "poly", "--degree", "3", "--coef0", "1", "--gamma", "0.1"),
    "laplacian": ("rings.h5", "--kernel", "laplacian"),
    "csr": ("rings-csr.h5", "--C", "10"),
    "npy": ("rings.npy", "--labels", "rings-y.npy", "--C", "10"),
    "noisy": ("a1a.h5", "--memory", "400MiB", "--tol", "1e-2"),
    "landmarks": ("a1a.h5", "--landmarks", "300"),
    "classes": ("shells.h5", "--C", "10"),
    "probability": ("shells.h5", "--probability"),
    "balanced": ("rings.h5", "--class-weight", "balanced"),
    "meb": ("rings.h5", "--stopping", "meb", "--tol", "1e-6"),
    "dask": ("rings.h5", "--dask", "threads"),
    "stream": ("rings.txt", "--stream", "--gamma", "1", "--C", "10"),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.same", description=__doc__)
    parser.add_argument("checkouts", nargs=2, type=Path, metavar="CHECKOUT")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=[*RUNS], metavar="RUN")
    arguments = parser.parse_args(argv)
    found = []
    for checkout in map(Path.resolve, arguments.checkouts):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            write_data(folder, checkout)
            found.append({name: trained(folder, checkout, name) for name in arguments.runs})
    n_worse = 0
    for name, expected in found[0].items():
        why = worse(expected, found[1][name])
        n_worse += bool(why)
        print(f"{name} is {'; '.join(why) or 'as good'}")
    print(f"{len(arguments.runs)} runs, {n_worse} of them worse")
    return int(n_worse > 0)


def worse(expected: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """In which ways a run is worse than it was."""
    if "failed" in expected or "failed" in result:
        return [] if "failed" in expected else [f"failed: {result['failed']}"]
    why = []
    pairs = zip(expected["objective"], result["objective"], strict=True)
    excess = max((new / old - 1 for old, new in pairs if old and new), default=0.0)
    if excess > OBJECTIVE_TOL:
        why.append(f"of an objective larger by {excess:.2g}")
    # After a limit of iterations gaps vary a little.
    allowed = max(expected["tol"] or 0.0, 1.2 * (expected["gap"] or 0.0))
    if result["status"] != expected["status"]:
        why.append(f"{result['status']}, not {expected['status']}")
    if expected["gap"] is not None and (result["gap"] is None or result["gap"] > allowed):
        why.append(f"of gap {result['gap']}, where {allowed:.3g} is allowed")
    if result["accuracy"] < expected["accuracy"] - ACCURACY_TOL:
        why.append(f"of accuracy {result['accuracy']:.4f}, not {expected['accuracy']:.4f}")
    return why


def command(checkout: Path, folder: Path, *arguments: str) -> str:
    """Run ooc-fw of a checkout in a folder; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "ooc_fw", *arguments, "--quiet"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 3):  # 3: ended early, as it should
        raise RuntimeError(done.stderr.strip()[-500:])
    return done.stdout


def trained(folder: Path, checkout: Path, name: str) -> dict[str, Any]:
    """Objectives, gap and accuracy of a model."""
    data, *options = RUNS[name]
    test = f"{data.split('.')[0].split('-')[0]}-test.txt"
    try:
        said = json.loads(
            command(checkout, folder, "train", data, "-o", "m.h5", "--json", *options)
        )
        judged = json.loads(command(checkout, folder, "evaluate", "m.h5", test, "--json"))
    except RuntimeError as error:
        return {"failed": str(error)}
    return {
        "objective": [one.get("objective") for one in said.get("classifiers") or [said]],
        "gap": said["certified_gap"],
        "tol": said.get("tol"),
        "status": said["status"],
        "accuracy": judged["accuracy"],
    }


def write_data(folder: Path, checkout: Path) -> None:
    """Write the data of all runs; conversion is part of what is compared."""
    samples = next(path.parent for path in (checkout / "ooc_fw").rglob("a1a.xz"))
    command(checkout, folder, "convert", str(samples / "a1a.xz"), "a1a.h5")
    (folder / "a1a-test.txt").write_bytes(lzma.decompress((samples / "a1a.t.xz").read_bytes()))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(18_000, 6))
    write_texts(folder, "rings", x, np.abs(np.linalg.norm(x, axis=1) - 2.3) < 0.55, 12_000)
    x = rng.normal(size=(8_000, 4))
    shell = np.digitize(np.linalg.norm(x, axis=1), [1.2, 1.8, 2.4])
    write_texts(folder, "shells", x, shell, 4_000)
    for name, *options in (
        ("rings", "rings.h5", "--dense"),
        ("rings", "rings-csr.h5", "--sparse"),
        ("shells", "shells.h5", "--scale", "standard"),
    ):
        command(checkout, folder, "convert", f"{name}.txt", *options)


def write_texts(folder: Path, name: str, x: np.ndarray, y: np.ndarray, n_train: int) -> None:
    """Write the first rows as training data, as text and array, and the others as test data."""
    np.save(folder / f"{name}.npy", x[:n_train].astype(np.float32))
    np.save(folder / f"{name}-y.npy", y[:n_train].astype(np.int8))
    for part, rows in (("", slice(n_train)), ("-test", slice(n_train, None))):
        with (folder / f"{name}{part}.txt").open("w") as file:
            for row, label in zip(x[rows], y[rows], strict=True):
                pairs = " ".join(f"{k}:{value:.6g}" for k, value in enumerate(row, 1))
                file.write(f"{int(label)} {pairs}\n")


if __name__ == "__main__":
    sys.exit(main())
