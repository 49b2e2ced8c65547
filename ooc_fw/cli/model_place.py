"""Where ``train`` and ``tune`` write a model, and where it goes when that place will not do."""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path

from ooc_fw.cli import common
from ooc_fw.cli.commands import DONE, FAILED
from ooc_fw.model.record import Model, load_model
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs, reserved

logger = logging.getLogger(__name__)


class ModelPlace:
    """The output of a run, and the places that a model takes instead.

    A file that stood at the output m.h5 when the run began is not replaced by the model of a run
    that was cut off, nor a model there by a worse one: these go to m.unfinished.h5,
    m.unfinished2.h5, ... beside it. Where the folder is gone or full at the end, the model goes to
    the current folder, or that of temporary files, and the run has `failed`.
    """

    def __init__(self, output: Path) -> None:
        self.output, self.failed = output, False
        self._stood = output.is_file()
        self._beside = _free(output.with_name(f"{output.stem}.unfinished{output.suffix}"))

    def save(self, model: Model, *, complete: bool = True) -> Path:
        """Write a model that is `complete`, or of a run that was cut off; returns its file."""
        beside = self._stood and (not complete or self._has_better(model))
        path = self._beside if beside else self.output
        try:
            model.save(path)
        except (OSError, InputError) as error:
            path = self._save_elsewhere(model, path, error)
        return path

    def status(self, number: int | None) -> int:
        """Exit status of a run that the signal of this number ended, if one did."""
        return 128 + number if number else FAILED if self.failed else DONE

    def note(self, path: Path) -> str:
        """End of a sentence about a model that was written somewhere else."""
        return "" if path == self.output else f"; it is in {path}, and {self.output} is unchanged"

    def _has_better(self, model: Model) -> bool:
        """Whether the model at the output has a smaller gap, and `model` met no target."""
        if Status(model.status).reached or model.status == Status.STREAMED:
            return False
        try:
            there = load_model(self.output)
        except (InputError, OSError):
            return False
        if there.certified_gap is None:
            return Status(there.status).reached
        # A resumed run ends with the same gap, but for rounding.
        return model.certified_gap is None or there.certified_gap < 0.999 * model.certified_gap

    def _save_elsewhere(self, model: Model, path: Path, error: Exception) -> Path:
        folders: tuple[Callable[[], str], ...] = (os.getcwd, tempfile.gettempdir)
        for folder in folders:
            with suppress(OSError):
                other = _free(Path(folder(), path.name))
                model.save(other)
                self.failed = True
                reason = getattr(error, "strerror", None) or error
                logger.error("%s cannot be written (%s); the model is in %s", path, reason, other)
                return other
        raise error


def _free(path: Path) -> Path:
    """The path itself, or with the least number at the end of its stem that no file has."""
    others = (path.with_name(f"{path.stem}{number}{path.suffix}") for number in count(2))
    return next(name for name in chain([path], others) if not os.path.lexists(name))


@contextmanager
def model_place(args: argparse.Namespace) -> Iterator[ModelPlace]:
    """Place of the model of ``train``, after a check of all outputs, which no other run takes."""
    if args.output is None and args.data == "-":
        raise InputError("a model trained on standard input needs a name; give one with -o")
    model = common.model_output(args)
    outputs = [model]
    if args.log is not None:
        outputs.append(Output("log", args.log, streamed=True))
    check_outputs(outputs, [args.resume])  # the checkpoint may replace what it resumes from
    if args.checkpoint is not None:
        outputs.append(Output("checkpoint", args.checkpoint))
    inputs = [name for name in common.inputs_of(args) if name != args.resume]
    with reserved(outputs, inputs):
        yield ModelPlace(Path(model.path))
