"""``ooc-fw info``: what a data or model file holds.

Owns the choice of what to tell. Reads attributes and labels, no rows.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ooc_fw.cli import common

if TYPE_CHECKING:
    from ooc_fw.model import Model
    from ooc_fw.scaling import Scaling
    from ooc_fw.sources import RowSource


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "info",
        help="what a data or model file holds",
        description="Describe an HDF5 data file, a .npy array or a model file.",
    )
    common.add_data_arguments(parser, text=False)
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the description."""
    if _is_model(args.data):
        from ooc_fw.model import load_model

        result = describe_model(load_model(args.data))
    else:
        with common.open_data(args) as source:
            result = describe_data(source)
        result |= _storage(args.data, args.x_name)
    common.print_result(result, as_json=args.json)
    return 0


def describe_model(model: Model) -> dict[str, Any]:
    """Tell what a model file holds; relative gaps, None for what is not known."""
    (machine,) = model.machines
    return {
        "kind": "model",
        **{("kernel" if name == "name" else name): v for name, v in model.kernel.to_dict().items()},
        "C": model.C,
        "n_features": model.n_features,
        "n_support": len(machine.alpha),
        "rho": machine.rho,
        "objective": machine.objective,
        "certified_gap": machine.certified_gap,
        "sampled_gap": machine.sampled_gap,
        "status": model.status,
        "classes": [common.format_label(value) for value in model.classes],
        **_scaling(model.scaling),
    }


def describe_data(source: RowSource) -> dict[str, Any]:
    """Tell what a source holds; None for what it does not say."""
    import numpy as np

    from ooc_fw.stats import average_squared_distance

    counts = None
    if source.has_labels:
        values, number = np.unique(source.labels(0, source.n_rows), return_counts=True)
        counts = {
            common.format_label(value): int(count)
            for value, count in zip(values, number, strict=True)
        }
    statistics = source.statistics
    sigma2 = None
    if statistics is not None:
        sigma2 = average_squared_distance(statistics.mean, statistics.mean_square_norm)
    return {
        "kind": "data",
        "n_rows": source.n_rows,
        "n_features": source.n_features,
        "storage": "csr" if source.sparse else "dense",
        "classes": counts,
        **_scaling(source.scaling),
        "shuffled": source.shuffled,
        "sigma2": sigma2,
        "gamma_auto": 1 / (2 * sigma2) if sigma2 else None,  # of the RBF kernel
        "chunk_rows": source.chunk_rows,
    }


def _scaling(scaling: Scaling | None) -> dict[str, Any]:
    if scaling is None:
        return {"scaling": None, "log1p": None}
    return {"scaling": scaling.kind, "log1p": scaling.log1p}


def _is_model(path: str) -> bool:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            return "kernel" in file.attrs
    except OSError:  # not HDF5, or not there: whoever opens it as data explains
        return False


def _storage(path: str, x_name: str) -> dict[str, Any]:
    """Bytes of the file, and the filter its values are stored with."""
    import os

    import h5py

    result: dict[str, Any] = {"file_bytes": os.path.getsize(path), "compression": None}
    if h5py.is_hdf5(path):
        with h5py.File(path, "r") as file:
            rows = file[x_name]
            values = rows["data"] if isinstance(rows, h5py.Group) else rows
            result["compression"] = _filter_name(values)
    return result


def _filter_name(values: Any) -> str:
    """Name of a compression filter; those of plugins are known by number only."""
    filters = {32004: "lz4", 32015: "zstd"}
    listed = values.id.get_create_plist()
    for position in range(listed.get_nfilters()):
        code, _, _, name = listed.get_filter(position)
        if code in filters:
            return filters[code]
        if code == 1:  # H5Z_FILTER_DEFLATE
            return "gzip"
        if code > 3:  # 2 and 3 are shuffle and checksum, which compress nothing
            return name.decode() or str(code)
    return "none"
