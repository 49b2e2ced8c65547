"""The certificates of a run: which rows a pass over the data may leave out, and what it found."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from ooc_fw.certificate.screening import Screen
from ooc_fw.certificate.sweep import Certificate, Search, SupportGradient, SupportWeights, certify
from ooc_fw.data.rows import Int64Array, take_rows
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.deadline import Deadline
from ooc_fw.solver.setup import Setting
from ooc_fw.solver.state import Status, Stop

logger = logging.getLogger(__name__)

_LEAST_VIOLATORS = 512  # violators that a pass may always return
_FEW_UNSCREENED = 0.5  # share of unscreened rows from which a pass looks at all, for a new screen


class Certification:
    """Certifying passes over the data, the last certificate, and the screen for the next pass.

    Attributes
    ----------
    certificate : Certificate or None
        Of the weights of now; None where they have none.
    seconds : float or None
        Time of the last pass over all rows.
    """

    def __init__(self, setting: Setting, deadline: Deadline) -> None:
        self._setting, self._deadline = setting, deadline
        self._n_rows = setting.problem.source.n_rows
        self._screen: Screen | None = None
        self._share = 1.0  # of the rows that the last pass looked at
        self.certificate: Certificate | None = None
        self.seconds: float | None = None

    def work(self, active: ActiveSet) -> float:
        """Rows times support vectors that the next pass is likely to take; 0 without one."""
        if not self._setting.options.certify:
            return 0.0
        return self._share * self._n_rows * len(active.support)

    def forget(self) -> None:
        """Drop the certificate and the screen, since the weights were replaced."""
        self.certificate = self._screen = None
        self._share = 1.0

    def certify(
        self, active: ActiveSet, tolerance: float, on_block: Callable[[float], None]
    ) -> Certificate:
        """Make a pass over all rows, or over those that may violate by more than the tolerance.

        The gradient of the active set was just computed in float64. `on_block` is told the share
        of the pass that is done. Stop is raised when the pass will not end within the time limit.
        """
        setting, support, unscreened = self._setting, active.support, self._unscreened(active)
        ids, alpha = active.ids[support], active.alpha[support]
        n_rows = self._n_rows if unscreened is None else len(unscreened)
        work = n_rows * len(support)
        started = time.perf_counter()

        def on_rows(rows_seen: int) -> None:
            share = rows_seen / n_rows
            on_block(share)
            seconds = time.perf_counter() - started
            if self._deadline.sweep_is_late(seconds, share):
                self._deadline.sweeps.add(seconds, share * work)
                raise Stop(Status.TIME_LIMIT)

        screen = None
        if unscreened is None:
            plain, norm2 = active.plain_grad[support], active.squared_norm()
            screen = Screen(self._n_rows, ids, alpha, plain, norm2, active.rounding)
        gradient = SupportGradient(active.grad[support], active.rounding)
        rows = take_rows(active.rows, support)
        weights = SupportWeights(rows, ids, alpha, active.penalty_of(ids), gradient)
        search = Search(tolerance, max(_LEAST_VIOLATORS, len(active)), screen, unscreened)
        self.certificate = certify(
            setting.problem, setting.engine, weights, search, on_rows, setting.workers
        )
        seconds = time.perf_counter() - started
        self._deadline.sweeps.add(seconds, work)
        self._share = n_rows / self._n_rows
        if screen is not None:
            self.seconds, self._screen = seconds, screen
            active.pinned[:] = False
            active.pinned[support] = True  # `_unscreened` needs the gradient of these vertices
        return self.certificate

    def _unscreened(self, active: ActiveSet) -> Int64Array | None:
        """Rows that may be worse than the support, by the last screen; None for all rows."""
        if self._screen is None:
            return None
        rounding, norm2 = active.rounding, active.squared_norm()
        plain = active.plain_grad[active.places_of(self._screen.row_ids)]
        floor = float(active.grad[active.support].min()) + rounding
        labels = self._setting.problem.labels
        unscreened = self._screen.unscreened(floor, labels, norm2, plain, rounding)
        logger.info("screening leaves %d of %d rows", len(unscreened), self._n_rows)
        return unscreened if len(unscreened) < _FEW_UNSCREENED * self._n_rows else None

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: arrays, and values for JSON."""
        return {"share": self._share, **(self._screen.state() if self._screen else {})}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave."""
        self._share = state.pop("share")
        self._screen = Screen.from_state(state) if state else None
