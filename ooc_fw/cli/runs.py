"""What `train`, `tune` and streams share: the file of the model, log, display; plots of logs."""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE, FAILED
from ooc_fw.data.structure import is_checkpoint, is_model
from ooc_fw.model.record import Model
from ooc_fw.options import TrainOptions
from ooc_fw.report.figures import PANELS, check_figure, draw_runs, is_figure, save
from ooc_fw.report.progress import EventLog, Progress, is_log
from ooc_fw.report.runlog import read_runs
from ooc_fw.system.errors import InputError, format_gap, format_value
from ooc_fw.system.files import Output, check_outputs
from ooc_fw.system.memory import peak_rss_bytes
from ooc_fw.training.fit import Fit

logger = logging.getLogger(__name__)


class ModelPlace:
    """The output of a run; it replaces only models.

    If the output m.h5 exists when the run begins, a run that is cut off does not replace it: its
    model goes to m.unfinished.h5. A model that cannot be written at the end goes to the folder of
    temporary files, and the run has `failed`. InputError for outputs that cannot be written, or
    would replace an input.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        given = vars(args)
        self.failed = False
        self.output = common.output_of(args, args.data, ".model.h5")
        self.unfinished = self.output
        outputs = [Output("model", self.output, is_model)]
        if os.path.isfile(self.output):
            name = f"{self.output.stem}.unfinished{self.output.suffix}"
            self.unfinished = self.output.with_name(name)
            outputs.append(Output("unfinished model", self.unfinished, is_model))
        outputs.append(Output("log", given.get("log"), is_log))
        resume = given.get("resume")
        outputs.append(Output("checkpoint", given.get("checkpoint"), is_checkpoint, resume))
        check_outputs(outputs, [*common.inputs_of(args), resume])

    def save(self, model: Model, *, complete: bool = True) -> Path:
        """Write the model of a run, which was cut off if it is not `complete`; returns its file."""
        path = self.output if complete else self.unfinished
        try:
            model.save(path)
        except (OSError, InputError) as error:
            self.failed = True
            other = Path(tempfile.mkdtemp(prefix="ooc-fw-model-"), path.name)
            try:
                model.save(other)
            except OSError:
                other.parent.rmdir()
                raise error from None
            reason = getattr(error, "strerror", None) or error
            logger.error("%s cannot be written (%s); the model is in %s", path, reason, other)
            return other
        return path

    def status(self, number: int | None, *, failed: bool = False) -> int:
        """Exit status of the run; `number` is that of the signal that ended it, if one did."""
        return 128 + number if number else FAILED if self.failed or failed else DONE

    def note(self, path: Path) -> str:
        """End of a sentence: where the model is, if this is not the output."""
        return "" if path == self.output else f"; it is in {path}, and {self.output} is unchanged"


def open_log(args: argparse.Namespace, options: TrainOptions, **facts: Any) -> EventLog | None:
    """Open the log of a run and write its arguments and `facts`; None without ``--log``."""
    if args.log is None:
        return None
    begin = {name: getattr(args, name) for name in ("data", "resume", "class_weight")}
    return EventLog(args.log, **begin, **facts, options=options.to_dict())


def run_progress(args: argparse.Namespace, log: EventLog | None = None) -> Progress:
    """The display of a run; not in place if it is verbose, since messages would break the line."""
    progress = Progress(quiet=args.quiet, in_place=not args.verbose, log=log)
    progress.started = args.started  # training and calibration count from one time
    return progress


def costs(args: argparse.Namespace) -> dict[str, Any]:
    """Time and memory of the command so far."""
    return {"seconds": time.perf_counter() - args.started, "peak_rss_bytes": peak_rss_bytes()}


def warn_of_faults(fitted: Fit, note: str = "") -> None:
    """Warn if the gap is above the tolerance, or the model incomplete; `note` says where it is."""
    words = "valid but less exact"
    if fitted.model.certified_gap is None:
        words = "valid, but nothing bounds how far it is from the optimum; see ooc-fw certify"
    why = fitted.why_inexact()
    if why is not None:
        logger.warning("%s; the model is %s%s", why, words, note)
    if fitted.missing:
        logger.warning("%s%s", fitted.missing, note)


def summary(result: Mapping[str, Any]) -> list[str]:
    """Summarise a run of ``train`` in a few lines for people."""
    certified = result["certified_gap"] is not None
    gap = format_gap(result["certified_gap" if certified else "sampled_gap"])
    kind = "certified over all rows" if certified else "over the rows drawn last, not certified"
    if certified and result["n_weighted"] is not None:
        kind = f"certified over the {result['n_weighted']} rows that it learns"
    if result["gap_scope"] == "span":
        kind = f"{common.span_of(result)}, {kind}"
    if "classifiers" in result:
        kind += f", the worst of {len(result['classifiers'])} classifiers"
    what = "landmarks of" if result["kind"] == "landmarks" else "support vectors of"
    if result["kind"] == "linear":
        what = "weights for each classifier, from"
    names = ("gamma", "C", "epsilon")
    known = [name for name in names if result.get(name) is not None]
    numbers = [f"{name} {format_value(result[name])}" for name in known]
    words = f"relative gap {gap}"
    if result["kind"] == "exact" and result["objective_gap"] is not None:
        share = format_gap(result["objective_gap"])
        words = f"the best objective is lower by at most {share} (relative gap {gap})"
    return [
        f"{result['status']}: {words}, {kind}",
        f"{result['n_support']} {what} {result['n_rows']} rows, {result['kernel']} kernel, "
        f"{', '.join(numbers)}",
        f"{result['iterations']} iterations, work {result['work']:.1f}, "
        f"{result['seconds']:.1f} s, {result['peak_rss_bytes'] / 1e6:.0f} MB at the peak",
    ]


def plot(args: argparse.Namespace) -> int:
    """Draw logs of training runs."""
    output = common.output_of(args, args.logs[0], ".png")
    check_outputs([Output("figure", output, is_figure)], args.logs)
    check_figure(output)
    panels = tuple(dict.fromkeys(name.strip() for name in args.panels.split(",")))
    runs = read_runs(args.logs)
    common.refuse(
        {
            f"--panels knows {', '.join(PANELS)}, not {args.panels}": not {*panels} <= {*PANELS},
            f"{args.logs[0]}: no progress to draw, the run ended before its first iteration; give "
            f"the log of a longer run": all(run.n_events == 0 for run in runs),
        }
    )
    save(draw_runs(runs, panels), output)
    common.print_result(args, {"output": str(output), "runs": len(runs)}, [output])
    return DONE
