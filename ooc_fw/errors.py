"""What can go wrong by a user's hand.

Owns the one exception that means "the input or an option is wrong". Failing to converge is not an
error: it is a :class:`ooc_fw.state.Status`.
"""

from __future__ import annotations


class InputError(ValueError):
    """A file, value or option that cannot be used.

    The message is one sentence that names the file or option, the value met and the way out. The
    command line prints it as it is and exits with status 2.
    """
