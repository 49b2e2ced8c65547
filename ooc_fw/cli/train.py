"""``ooc-fw train``: trains a model on a data file."""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_fw.cli import common, runs
from ooc_fw.cli.commands import DONE
from ooc_fw.options import NOVELTY_C, ModelOptions
from ooc_fw.report.progress import Waiting
from ooc_fw.solver.plan import Plan, Session
from ooc_fw.solver.surroundings import Checkpoint
from ooc_fw.system.errors import DeferredInterrupt, InputError, format_label
from ooc_fw.system.memory import format_bytes
from ooc_fw.training.checkpoint import EVERY_S, load_resumed
from ooc_fw.training.choice import plan_model
from ooc_fw.training.fit import describe, fit
from ooc_fw.training.prepare import Weights, prepare
from ooc_fw.training.tasks import ordinary_rows

logger = logging.getLogger(__name__)


def run(args: argparse.Namespace) -> int:
    """Train a model."""
    options = _options(args)
    labels = args.ordinary is not None or args.task != "novelty"
    with (
        common.open_data(args, labels=labels) as source,
        common.open_workers(args) as workers,
        DeferredInterrupt() as interrupt,
    ):
        place = runs.ModelPlace(args)
        resumed = None if args.resume is None else load_resumed(args.resume)
        if resumed is not None:
            options = resumed.options(options)
        ordinary = None
        if args.ordinary is not None:
            label, ordinary, words = ordinary_rows(source, args.ordinary)
            source.origin = {**source.origin, "ordinary": label}
            common.say(args, words)
        checkpoint = None
        if args.checkpoint is not None:
            checkpoint = Checkpoint(args.checkpoint, args.checkpoint_every or EVERY_S)
        session = Session((), workers, args.started, checkpoint, interrupt=interrupt)
        weights = Weights(args.class_weight, ordinary)
        with Waiting("labels and statistics", source.n_rows, quiet=args.quiet) as tell:
            prepared = prepare(source, args.task, options, weights, session, tell)
        problem = prepared.problem
        with Waiting("the choice of the model", quiet=args.quiet) as tell:
            plan = plan_model(problem, options, replace(session, say=tell.say))
        if prepared.words:
            common.say(args, prepared.words)
        if args.dry_run:
            return _print_plan(args, plan)
        common.say(args, plan.kind)
        rows = problem.source
        if args.task == "classification" and problem.penalties is None:
            names = map(format_label, problem.classes.tolist())
            counts = np.bincount(problem.codes).tolist()
            common.say(args, *common.imbalance(dict(zip(names, counts, strict=True))))
        facts = {"n_rows": rows.n_rows, "n_features": rows.n_features, "task": args.task}
        log = runs.open_log(args, options, **facts, kernel=problem.kernel.to_dict())
        with runs.run_progress(args, log) as progress:
            session = replace(session, callbacks=progress.callbacks)
            fitted = fit(problem, options, session, resumed, plan)
            output = place.save(fitted.model, complete=fitted.complete)
            result = describe(fitted) | runs.costs(args) | {"model": str(output)}
            progress.end(result)
    note = place.note(output)
    if fitted.signal is not None and args.checkpoint is None:
        note += "; with --checkpoint FILE, a run can go on later"
    runs.warn_of_faults(fitted, note)
    common.print_result(args, result, [output], runs.summary(result))
    return place.status(fitted.signal, failed=fitted.failed)


def _options(args: argparse.Namespace) -> ModelOptions:
    """Options of the model from the arguments; InputError if arguments contradict each other."""
    needs = {name: "--stream" for name in ("zero_based", "keep", "fill_missing")}
    if args.checkpoint is None:
        needs["checkpoint_every"] = "--checkpoint FILE"
    fields = {"contamination": "novelty", "ordinary": "novelty", "epsilon": "regression"}
    needs |= {name: f"--task {task}" for name, task in fields.items() if args.task != task}
    for name, other in needs.items():
        common.refuse_given(args, [name], f"goes with {other} only; add that, or leave it out")
    if args.task != "classification":
        useless = ["class_weight", "probability"]
        useless += ["labels"] * (args.task == "novelty" and args.ordinary is None)
        common.refuse_given(args, useless, f"has no meaning for --task {args.task}; leave it out")
    if args.data == "-":
        raise InputError("text on standard input goes with --stream only; add that, or convert it")
    usual = {"C": NOVELTY_C} if args.task == "novelty" and args.C is None else {}
    return common.record_from(ModelOptions, args, **usual)


def _print_plan(args: argparse.Namespace, plan: Plan) -> int:
    """Print the kind of model and the division of the memory, for ``--dry-run``."""
    room = plan.memory
    sizes = {"kernel values": room.kernel_values, "rows kept in memory": room.row_cache}
    sizes["all else"] = room.planned - sum(sizes.values())
    kind = "exact" if plan.landmarks is None else "linear" if plan.linear else "landmarks"
    result: dict[str, Any] = {"choice": plan.kind, "kind": kind, "landmarks": plan.landmarks}
    result |= {"memory_limit": room.limit, "memory": sizes}
    rows = [[name, format_bytes(size)] for name, size in sizes.items()]
    common.print_result(args, result, [*common.wrapped([plan.kind], 2), *common.table(rows)])
    return DONE
