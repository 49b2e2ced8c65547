"""``ooc-fw evaluate``: prints and draws how good a model is on labelled rows."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE
from ooc_fw.cli.models import new_rows, open_model
from ooc_fw.data.structure import is_model
from ooc_fw.model.evaluation import MOST_CONFUSED, judge
from ooc_fw.report.figures import check_figure, draw_fit, draw_measures, is_figure, save
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs


def run(args: argparse.Namespace) -> int:
    """Measure how good a model is on labelled rows."""
    model = open_model(args)
    model_output = Output("model", args.save, is_model)
    check_outputs([Output("figure", args.figure, is_figure), model_output], common.inputs_of(args))
    check_figure(args.figure)
    if model.task != "novelty":
        common.refuse_given(args, ["ordinary"], "goes with novelty models only; leave it out")
    if args.ordinary is not None:
        model.origin["ordinary"] = args.ordinary
    if args.false_alarms is None:
        common.refuse_given(args, ["save"], "goes with --false-alarms only; add that")
    rows = new_rows(args, args.model, missing_labels="drop")
    result, seen = judge(model, rows, positive=args.positive, false_alarms=args.false_alarms)
    common.print_result(args, result, _lines(result))
    if model.task == "classification" and model.penalties is None:
        counts = {name: each["support"] for name, each in result["classes"].items()}
        common.say(args, *common.imbalance({name: n for name, n in counts.items() if n > 0}))
    if args.save is not None:
        replace(model, threshold=result["threshold"]).save(args.save)
    if args.figure is not None:
        is_regression = model.task == "regression"
        if not is_regression and result["confusion"] is None:
            raise InputError(
                f"a figure shows up to {MOST_CONFUSED} classes, not {len(result['classes'])}; "
                f"leave out --figure"
            )
        figure = draw_fit(seen.given, seen.found) if is_regression else draw_measures(result, seen)
        save(figure, args.figure)
    return DONE


def _lines(result: dict[str, Any]) -> list[str]:
    tables = ("classes", "macro", "confusion")
    lines = common.aligned({k: v for k, v in result.items() if k not in tables and v is not None})
    if "classes" not in result:
        return lines
    rows = [["class", *result["macro"]]]
    for name, measures in [*result["classes"].items(), ("macro mean", result["macro"])]:
        *ratios, count = measures.values()
        rows.append([name, *("-" if x != x else f"{x:.4f}" for x in ratios), f"{count:.0f}"])
    lines += ["", *common.table(rows)]
    names = [*result["classes"]]
    if len(names) > 20:  # the table would be wider than a screen
        return lines
    rows = [[name, *row] for name, row in zip(names, result["confusion"], strict=True)]
    lines += ["", "confusion (given below, predicted to the right)"]
    return lines + common.table([["", *names], *rows])
