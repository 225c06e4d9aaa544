"""Files and folders that are replaced whole or not at all, whenever the process that writes them is killed.

A folder is filled under a temporary name beside its place, then the two names are swapped in one step. The writer holds
a lock on its temporary folder, which the kernel lets go of when the process ends: a temporary folder without a lock was
left behind, and the next writer to that place removes it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import StrixhloError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
_HINTS = {
    errno.ENOSPC: "; free some space there, or choose another place",
    errno.EDQUOT: "; free some space there, or choose another place",
    errno.EACCES: "; choose a place that you can write to",
    errno.EPERM: "; choose a place that you can write to",
    errno.EROFS: "; choose a place that you can write to",
}


def atomic_write(path: Path, data: bytes) -> None:
    """Temporary name, sync, rename. OSError names `path`; StrixhloError where that is a device, a pipe or a socket,
    which a file must not take the place of."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise StrixhloError(f"{path}: is no ordinary file; choose another name")
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with suppress(NotADirectoryError):
            temporary.unlink(missing_ok=True)
    _sync(path.parent)


@contextmanager
def replaced_directory(path: Path, *markers: str) -> Iterator[Path]:
    """Yields a temporary folder that takes the place of `path` when the block ends without an error.

    An existing `path` is replaced only when it holds one of `markers` (it is one of ours) or is empty. StrixhloError
    where that is not so, or where something cannot be written.
    """
    path = path.resolve()  # a link to a folder stays, and the folder is replaced
    temporary = _temporary_name(path)
    lock: int | None = None
    try:
        _check_ours(path, markers)
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        lock = _claim(temporary)
        yield temporary
        for folder, _, files in os.walk(temporary):
            for name in files:
                _sync(Path(folder) / name)
            _sync(Path(folder))
        _check_ours(path, markers)
        _swap(temporary, path)
        _sync(path.parent)
    except OSError as error:
        raise _failure(error, path, temporary) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # by now what was at `path` before, or half a folder
        if lock is not None:
            os.close(lock)


@contextmanager
def scratch_directory(path: Path) -> Iterator[Path]:
    """Yields a temporary folder beside `path`, gone at the end of the block; those of writers that were killed are
    removed first."""
    temporary = _temporary_name(path)
    lock: int | None = None
    try:
        _remove_leftovers(path)
        lock = _claim(temporary)
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextmanager
def only_user(folder: Path) -> Iterator[None]:
    """Makes the folder where it is not there, and holds its lock. StrixhloError while another process does. A folder
    that was made here and is empty at the end is removed."""
    ours = not folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = _lock(folder.resolve())
    except OSError:  # no locks on this file system
        yield
        return
    if lock is None:
        raise StrixhloError(f"{folder}: another strixhlo is at work there; wait until it has ended")
    try:
        yield
    finally:
        if ours and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        os.close(lock)


def _check_ours(path: Path, markers: tuple[str, ...]) -> None:
    if _holds_current_directory(path):
        raise StrixhloError(f"{path}: is the current directory, and would be replaced; name a folder inside of it")
    if path.parent.exists() and not path.parent.is_dir():
        raise StrixhloError(f"{path}: cannot be written ({path.parent} is a file); choose another name")
    if not path.exists() or any((path / m).is_file() for m in markers):
        return
    if not path.is_dir() or any(path.iterdir()):
        raise StrixhloError(
            f"{path}: exists and is not a strixhlo folder (no {markers[0]}); choose another name, or remove it"
        )


def _holds_current_directory(path: Path) -> bool:
    try:
        return Path.cwd().is_relative_to(path)
    except FileNotFoundError:  # it has been removed
        return False


def _failure(error: OSError, path: Path, temporary: Path) -> StrixhloError:
    """What went wrong, said of `path`, or of a file elsewhere that was read on the way."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        file = Path(os.fsdecode(error.filename))
        if not file.is_relative_to(temporary) and file not in (path, path.parent):
            return StrixhloError(f"{file}: {reason}")
    return StrixhloError(f"{path}: cannot be written ({reason}){_HINTS.get(error.errno or 0, '')}")


def _temporary_name(path: Path) -> Path:
    """A name beside `path`. It is known before the folder is made: an interrupt at any moment can clean up."""
    return path.with_name(f".{path.name}.partial-{uuid.uuid4().hex[:8]}")


def _claim(folder: Path) -> int | None:
    """Makes the folder; the lock that marks it as in use, None on a file system without locks."""
    while True:
        folder.mkdir(exist_ok=True)
        try:
            lock = _lock(folder)
        except FileNotFoundError:
            continue
        except OSError:  # no locks on this file system: nobody can take the folder for a leftover
            return None
        if lock is not None and folder.exists():
            return lock
        if lock is not None:
            os.close(lock)  # before it was locked, another writer took it for a leftover


def _remove_leftovers(path: Path) -> None:
    """Remove temporary folders for `path` whose writers are gone."""
    name = re.compile(re.escape(f".{path.name}.partial-") + "[0-9a-f]{8}")
    for folder in path.parent.iterdir():
        if not name.fullmatch(folder.name):
            continue
        try:
            lock = _lock(folder)
        except OSError:  # gone already, or a file system without locks
            continue
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None when another process holds it."""
    import fcntl  # not on every system that may import this module

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _swap(folder: Path, path: Path) -> None:
    """Give `folder` the name `path`; what is there gets the name `folder`."""
    try:
        folder.rename(path)  # nothing there, or an empty folder
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _exchanged(folder, path):
            old = _temporary_name(path)
            try:
                path.rename(old)
                folder.rename(path)
            finally:
                if not path.exists():  # interrupted between the two
                    old.rename(path)
                shutil.rmtree(old, ignore_errors=True)


def _exchanged(a: Path, b: Path) -> bool:
    """Exchange two names in one step; False where libc, kernel or file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(b))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
