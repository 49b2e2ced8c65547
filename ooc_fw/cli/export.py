"""``ooc-fw export``: a model as an ONNX graph."""

from __future__ import annotations

import argparse
from pathlib import Path

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.cli.rows import open_model
from ooc_fw.model.onnx import OPSET, to_onnx
from ooc_fw.system.files import Output, check_outputs, write_atomic

_HEAD = 64  # bytes at the beginning of an ONNX file that name its maker


def run(args: argparse.Namespace) -> int:
    """Write a model as an ONNX graph."""
    (output,) = common.named_outputs(args, "OUT.onnx")
    check_outputs([Output("output", output, is_own=None if args.output else _is_own)], args.inputs)
    model = open_model(args)
    if args.no_probabilities:
        model = model.with_sigmoids(None)
    content = to_onnx(model, double_input=not args.float32_input)
    write_atomic(Path(output), content)
    result = {
        "output": output,
        "opset": OPSET,
        "n_features": model.n_features,
        "n_support": len(model.support_vectors),
        "probabilities": model.calibrated,
        "bytes": len(content),
    }
    common.print_result(args, result, [output], common.aligned(result))
    return DONE


def _is_own(path: Path) -> bool:
    """Whether a file looks like one of ``ooc-fw export``, by the name of its maker."""
    with path.open("rb") as file:
        return b"ooc-fw" in file.read(_HEAD)
