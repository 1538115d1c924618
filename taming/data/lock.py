"""A lock between processes."""

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl

__all__ = ["exclusive"]

log = logging.getLogger(__name__)

UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Lets one process at a time in; the others wait, and say so in the log.

    A process that ends, however it does, gives its lock up. Where files cannot be locked (Windows,
    some network disks) all are let in.

    Args:
        path: a file that exists while the lock is held; its directory must exist.
        what: what the lock is for, for the log.
    """
    if sys.platform == "win32":  # an open file could not be removed there, either
        yield
        return
    descriptor = _locked(path, what)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the lock is given up: it is this process's file
        os.close(descriptor)


def _locked(path: Path, what: str) -> int:
    """A descriptor of the locked file."""
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            _lock(descriptor, what)
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the process that had it has removed it: there may be a new one


def _lock(descriptor: int, what: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.info("another process is at work on %s: waiting for it", what)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        log.warning("note: this disk has no locks, so let one process alone work on %s", what)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
