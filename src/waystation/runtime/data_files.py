"""Permissions of the files in the data directory: readable by their owner alone.

The directory holds signing secrets, payloads and states of transactions. New files get mode 0600
and new folders 0700, whatever the umask. Files and folders of earlier releases, or of an operator
who copied them, are tightened when a process opens them.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from waystation.errors import SettingsError
from waystation.runtime.logging import logger

_log = logger("data")

_FILE_MODE = 0o600
_OTHERS = 0o077
_OTHERS_WRITE = 0o022


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700. Existing folders are unchanged."""
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)


def create_private(file: Path) -> None:
    """Create an empty file with mode 0600 unless it exists.

    An existing file is not opened: closing a second descriptor of a database would release the
    locks that SQLite holds on it in this process.
    """
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _FILE_MODE))


def open_private(file: Path, mode: str) -> IO[Any]:
    """Open a file as `open` does; a file that this call creates gets mode 0600."""
    encoding = None if "b" in mode else "utf-8"
    return open(file, mode, encoding=encoding, opener=_open_private)


def write_private(file: Path, text: str) -> None:
    """Write a text to a file. The file gets mode 0600 before the text is written."""
    tighten([file])
    with open_private(file, "w") as output:
        output.write(text)


def replace_private(file: Path, text: str) -> None:
    """Replace a file with mode 0600, so that a reader sees either the former text or this one."""
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as output:
            output.write(text)
        os.replace(name, file)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def tighten(paths: Iterable[Path]) -> None:
    """Take all permissions of group and others from files and folders; skip missing paths.

    Logs each change. Raises SettingsError if another user owns a path that others can access.
    """
    for path in paths:
        _restrict(path, _OTHERS)


def tighten_tree(folder: Path) -> None:
    """Call `tighten` for a folder and for all files and folders below it.

    Skip symbolic links.
    """
    tighten(_tree(folder))


def protect_data_dir(folder: Path) -> None:
    """Remove the write permission that group and others have on an existing data directory.

    A user with write permission could replace files of the server. Read permission stays as the
    operator chose it: the files of the server are private themselves. A folder that another
    user owns, such as a mounted volume, is used as it is, with a warning.
    """
    mode = folder.stat().st_mode
    if mode & stat.S_ISVTX or not mode & _OTHERS_WRITE:
        return
    try:
        _restrict(folder, _OTHERS_WRITE)
    except SettingsError:
        _log.warning("data directory writable by others", path=str(folder))


def _open_private(name: str, flags: int) -> int:
    return os.open(name, flags, _FILE_MODE)


def _tree(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield Path(parent)
        for name in names:
            if not (path := Path(parent, name)).is_symlink():
                yield path


def _restrict(path: Path, bits: int) -> None:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        # The store has replaced the file meanwhile, or this user must not read it.
        return
    if not mode & bits:
        return
    try:
        path.chmod(mode & ~bits)
    except FileNotFoundError:
        return
    except PermissionError as error:
        raise SettingsError(
            f"{path} can be accessed by other users (mode {mode:04o}), and its owner is another"
            " user, so this process cannot change that.",
            hint=f"Run `chmod go= {path}` as its owner, or give the data directory to the user"
            " that runs Waystation.",
        ) from error
    _log.warning("permissions tightened", path=str(path), mode=f"{mode:04o}")
