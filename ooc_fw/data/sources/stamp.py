"""Size and time of change of a file."""

from __future__ import annotations

import os

from ooc_fw.system.errors import InputError


class FileStamp:
    """Size and time of change of a file, to notice that somebody replaced or cut it.

    They are measured at `path`, or at the `descriptor` of the same file as it was opened, in case
    another one has its name by now. `seen` holds bytes and nanoseconds.
    """

    def __init__(self, path: str, descriptor: int | None = None) -> None:
        self.path = path
        self.seen = self._measure(path if descriptor is None else descriptor)

    def _measure(self, file: str | int) -> tuple[int, int]:
        status = os.stat(file)
        return status.st_size, status.st_mtime_ns

    def check(self) -> None:
        """Raise InputError when the file is no longer the one that was stamped."""
        try:
            now = self._measure(self.path)
        except OSError as error:
            raise InputError(
                f"{self.path} went away while it was in use ({error.strerror}); put it back"
            ) from error
        if now != self.seen:
            raise InputError(
                f"{self.path} was changed while it was in use (it had {self.seen[0]} bytes, now "
                f"{now[0]}); start again with a file that stays as it is"
            )
