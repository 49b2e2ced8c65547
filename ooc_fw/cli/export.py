"""``ooc-fw export``: a model as an ONNX graph."""

from __future__ import annotations

import argparse
from pathlib import Path

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.model.onnx import OPSET, to_onnx
from ooc_fw.model.record import load_model
from ooc_fw.system.files import Output, check_outputs, write_atomic


def run(args: argparse.Namespace) -> int:
    """Write a model as an ONNX graph."""
    check_outputs([Output("output", args.output)], [args.model])
    model = load_model(args.model)
    if args.no_probabilities:
        model = model.with_sigmoids(None)
    content = to_onnx(model, double_input=not args.float32_input)
    write_atomic(Path(args.output), content)
    result = {
        "output": args.output,
        "opset": OPSET,
        "n_features": model.n_features,
        "n_support": len(model.support_vectors),
        "probabilities": model.calibrated,
        "bytes": len(content),
    }
    if args.json:
        common.print_result(args, result)
    else:
        common.print_lines(common.aligned(result))
        print(args.output)
    return DONE
