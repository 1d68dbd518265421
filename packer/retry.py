"""Reading from mounts that fail now and then: a Windows mount that hiccups is back in a second."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from readers.errors import SourceError

_RETRIES = 3
_SECONDS = 0.1  # doubled each time
# A mount's own trouble, not the file's: worth another try, and never a reject.
_TRANSIENT = frozenset({errno.EIO, errno.EINVAL, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN})

Result = TypeVar("Result")


def retry(operation: Callable[[], Result], path: Path) -> Result:
    """The result of an operation on the file at `path`, tried again after a mount's own trouble.

    Raises FileNotFoundError and PermissionError as they come, SourceError for all other trouble.
    """
    for attempt in range(_RETRIES + 1):
        try:
            return operation()
        except (FileNotFoundError, PermissionError):
            raise
        except OSError as error:
            if error.errno not in _TRANSIENT or attempt == _RETRIES:
                raise SourceError(
                    f"the file cannot be read: {error.strerror}",
                    path=path,
                    advice="what is packed so far is kept; run the same command again",
                ) from None
        time.sleep(_SECONDS * 2**attempt)
    raise AssertionError("unreachable")
