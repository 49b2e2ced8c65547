"""Files at an address, as https://, s3:// or gs://, by fsspec."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ooc_fw.system.errors import InputError


def is_url(path: str) -> bool:
    """Whether a path names something remote."""
    return "://" in path


@contextmanager
def remote_errors(url: str) -> Iterator[None]:
    """Turn what a service, or its client, raises into a sentence.

    Each client has errors of its own, which need not be of `OSError`.
    """
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{url} does not exist; check the address of the input") from None
    except ImportError as error:  # of fsspec, or of what it needs for this kind of address
        raise InputError(
            f"{url} is remote: pip install 'ooc-fw[remote]', and the package of its service "
            f"({error})"
        ) from None
    except Exception as error:
        reason = f"{error}".split("\n", 1)[0].rstrip(".") or type(error).__name__
        raise InputError(
            f"{url} cannot be read ({reason}); check the address, and what its service wants to "
            f"know of you"
        ) from error


def file_system(url: str) -> tuple[Any, str]:
    """File system of an address, and the path there; InputError if there is none."""
    with remote_errors(url):
        from fsspec.core import url_to_fs

        system, path = url_to_fs(url)
        return system, path


def open_url(url: str) -> io.BufferedReader:
    """Open a remote file; InputError if it is missing, a folder, or cannot be read."""
    system, path = file_system(url)
    with remote_errors(url):
        # Parts that were read are not kept: a text is read once from its beginning to its end.
        return io.BufferedReader(system.open(path, "rb", cache_type="readahead"))


def url_bytes(url: str) -> int | None:
    """Size of a remote file; None where its service does not say it."""
    system, path = file_system(url)
    with remote_errors(url):
        size = system.size(path)
    return None if size is None else int(size)
