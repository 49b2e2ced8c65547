"""Ctrl-C between two iterations instead of in the middle of one.

An interrupt that arrives while weights and gradient are being changed would leave them at odds.
Owns the handler of SIGINT while a run is on; restores the old one afterwards.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class DeferredInterrupt:
    """Notes the first SIGINT and raises at `check`; a second one raises where it arrives.

    Does nothing outside the main thread, where Python delivers no signals, and nothing where SIGINT
    is ignored.
    """

    def __init__(self) -> None:
        self._noted = False
        self._old: Any = None

    def __enter__(self) -> Self:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._old = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._old is not None:
            signal.signal(signal.SIGINT, self._old)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted:
            raise KeyboardInterrupt
        self._noted = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if a SIGINT has arrived since the last check."""
        if self._noted:
            self._noted = False
            raise KeyboardInterrupt
