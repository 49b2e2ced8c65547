"""``ooc-fw export``: a model as an ONNX graph."""

from __future__ import annotations

import argparse
from pathlib import Path

from ooc_fw.cli import common
from ooc_fw.system.files import Output, check_outputs, write_atomic


def add_commands(commands: common.Commands) -> None:
    """Declare the command."""
    parser = commands.add("export", run)
    common.add_model(parser)
    parser.add_argument("output", metavar="MODEL.onnx", help="file to write")
    parser.add_argument(
        "--float32-input",
        action="store_true",
        help="let the input be of float32 (default: of float64, which raw columns may need)",
    )
    parser.add_argument(
        "--no-probabilities",
        action="store_true",
        help="leave out the probabilities of a model that gives them",
    )
    common.add_results(parser, progress=False)


def run(args: argparse.Namespace) -> int:
    """Write a model as an ONNX graph.

    The input X has rows before scaling, in the order of the features of the training file. Outputs
    are label, decision and, of a model that gives them, probabilities; or prediction. The kernel is
    computed in double precision. Needs the package onnx: pip install 'ooc-fw[onnx]'.
    """
    from ooc_fw.model.onnx import OPSET, to_onnx
    from ooc_fw.model.record import load_model

    check_outputs([Output("output", args.output)], [args.model])
    model = load_model(args.model)
    if args.no_probabilities:
        model = model.without_sigmoids()
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
    return common.DONE
