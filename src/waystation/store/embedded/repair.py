"""Check and repair of the append-only files of an embedded store that is stopped.

    with stopped_store(folder):
        check = check_files(folder)
        if check.damages and check.repairable:
            repair_files(folder, check)

The directory `appendonlydir` has a manifest that lists one base file (a snapshot) and the
incremental files that the server appended to since. The server loads them in this order, so that
damage in an incremental file ends the usable data: a repair cuts this file at the damage and
removes the later ones. It cannot repair a base file.

The server's own checkers find the damage. The server program contains them and starts one if its
name, `argv[0]`, says so. They run on one file at a time, because the checker of Valkey 9 does not
recognize the snapshots of Valkey 9 when it reads a manifest: it reports a healthy base file as
damaged from its first byte.

A repair may crash at any point. It copies a file completely before it changes the original, and
each change is one rename or one truncation, so that a second repair completes the first one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import filecmp
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from waystation.errors import (
    NotFoundError,
    StoreError,
    StoreFileDamagedError,
    StoreInUseError,
)
from waystation.runtime.data_files import open_private
from waystation.store.embedded.server import NEWER_FORMAT, NEWER_FORMAT_HINT
from waystation.store.embedded.supervisor import try_lock
from waystation.store.plan import server_program

DIRECTORY = "appendonlydir"
MANIFEST = "appendonly.aof.manifest"

#: Maximum wait for a server that is stopping, or for a process that probes a lock.
_LOCK_SECONDS_MAX = 2.0

#: Names that select the checkers: one for Valkey and one for Redis, because each server looks for
#: its own name anywhere in `argv[0]`.
_CHECK_AOF = "valkey-check-aof redis-check-aof"
_CHECK_RDB = "valkey-check-rdb redis-check-rdb"

_MANIFEST_LINE = re.compile(r"file (\S+) seq (\d+) type ([bhi])(?: \S+ \S+)*")
_FILE_NAME = re.compile(r"appendonly\.aof\.(\d+)\.(base\.(?:rdb|aof)|incr\.aof)")
_AOF_RESULT = re.compile(r"AOF analyzed: .*size=(\d+), ok_up_to=(\d+),")
_RDB_ERROR = re.compile(r"RDB ERROR DETECTED ---\s+\[offset (\d+)\] (.*)")
_RDB_END = re.compile(r"\[offset (\d+)\] (?:Checksum OK|.*RDB looks OK)")
_UNKNOWN_COMMAND = re.compile(r"append only file (\S+), error: unknown command '(.*?)', with args")


@dataclass(frozen=True, kw_only=True)
class FileDamage:
    """Damage of one file, and what a repair does about it."""

    file: str
    problem: str
    size_bytes: int
    #: Position of the first byte that the server cannot load.
    offset: int
    #: Bytes that a repair removes, including those of later files.
    cut_bytes: int
    #: The file ends within a command, as after a crash. The server cuts such an end off itself.
    incomplete: bool = False
    repairable: bool = True


@dataclass(frozen=True, kw_only=True)
class StoreCheck:
    """Result of a check: the files in the order in which the server loads them, and the damage."""

    folder: str
    files: list[str]
    damages: list[FileDamage] = field(default_factory=list)
    #: Files behind the damage. A repair renames them and removes them from the manifest.
    removed: list[str] = field(default_factory=list)

    @property
    def repairable(self) -> bool:
        """Whether a repair can restore everything before the damage."""
        return all(each.repairable for each in self.damages)

    @property
    def cut_bytes(self) -> int:
        """Bytes of writes that a repair loses."""
        return sum(each.cut_bytes for each in self.damages)

    @property
    def loses_writes(self) -> bool:
        """Whether a repair removes more than the end that the server would cut off itself."""
        return any(each.file != MANIFEST and not each.incomplete for each in self.damages)


@dataclass(frozen=True)
class _Entry:
    name: str
    type: str
    #: Line of the manifest.
    line: str


# -- Locks -----------------------------------------------------------------------------------


@contextlib.contextmanager
def stopped_store(folder: Path) -> Iterator[None]:
    """Keep the store of `folder` stopped for the length of the block.

    Raise NotFoundError if there is no store, and StoreInUseError if a process uses it. The block
    holds the locks of the users, of the supervisor and of the server, so that no process can
    start a server meanwhile, even if another process deletes a lock file.
    """
    if not folder.is_dir():
        raise NotFoundError(
            f"No embedded store exists in {folder.parent}.",
            hint="Name the data directory of the server with --data.",
        )
    with contextlib.ExitStack() as stack:
        until = time.monotonic() + _LOCK_SECONDS_MAX
        first = True
        # The server locks the folder itself. Find a running server by that lock first: a supervisor
        # whose lock file was deleted ends if it finds a new one locked, and leaves its server.
        for name in ("", "users.lock", "keeper.lock", ""):
            flags = os.O_RDWR | os.O_CREAT if name else os.O_RDONLY | os.O_DIRECTORY
            lock = os.open(folder / name, flags | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, lock)
            while not try_lock(lock):
                if time.monotonic() > until:
                    raise StoreInUseError(
                        f"A process uses the embedded store in {folder.parent}.",
                        hint="Stop all processes that use this data directory, then repeat the"
                        " command.",
                    )
                time.sleep(0.01)
            if first:
                # Only test this lock. The last round takes it, when no user can start a server.
                fcntl.flock(lock, fcntl.LOCK_UN)
                first = False
        yield


# -- Check -----------------------------------------------------------------------------------


def check_files(folder: Path) -> StoreCheck:
    """Check the files of a stopped store, up to the first damage. Change nothing."""
    directory = folder / DIRECTORY
    entries, damages = _read_manifest(directory)
    check = StoreCheck(folder=str(folder), files=[each.name for each in entries], damages=damages)
    if not check.repairable:
        return check
    for number, entry in enumerate(entries):
        damage = _check_base(directory, entry) if entry.type == "b" else _check_log(folder, entry)
        if damage is None:
            continue
        later = [each.name for each in entries[number + 1 :]]
        if damage.repairable:
            check.removed.extend(later)
            cut_bytes = damage.cut_bytes + sum(_size(directory / each) for each in later)
            damage = _replace_cut(damage, cut_bytes)
        damages.append(damage)
        break
    return check


def _replace_cut(damage: FileDamage, cut_bytes: int) -> FileDamage:
    return FileDamage(
        file=damage.file,
        problem=damage.problem,
        size_bytes=damage.size_bytes,
        offset=damage.offset,
        cut_bytes=cut_bytes,
        incomplete=damage.incomplete and cut_bytes == damage.cut_bytes,
        repairable=damage.repairable,
    )


def _read_manifest(directory: Path) -> tuple[list[_Entry], list[FileDamage]]:
    """Return the files that the manifest lists; if it is damaged, those that it must list."""
    try:
        text = (directory / MANIFEST).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        if not _data_files(directory):
            return [], []
        text, problem, offset = "", "The manifest is missing.", 0
    else:
        entries, offset = _parse_manifest(text)
        if entries:
            return entries, []
        problem = "The manifest is empty." if not text else "The manifest is not valid."
    found = _rebuild_manifest(directory)
    damage = FileDamage(
        file=MANIFEST,
        problem=problem,
        size_bytes=_size(directory / MANIFEST),
        offset=offset,
        cut_bytes=0,
        repairable=bool(found),
    )
    return found, [damage]


def _parse_manifest(text: str) -> tuple[list[_Entry], int]:
    """Return the base file and the incremental files, or nothing and the offset of the damage."""
    entries: list[_Entry] = []
    offset = 0
    for line in text.splitlines(keepends=True):
        found = _MANIFEST_LINE.fullmatch(line.removesuffix("\n"))
        valid = found is not None and line.endswith("\n")
        if not valid and not line.startswith("#"):
            return [], offset
        if found is not None and found[3] != "h":
            entries.append(_Entry(found[1], found[3], line))
        offset += len(line.encode())
    entries.sort(key=lambda each: each.type)
    if sum(each.type == "b" for each in entries) > 1:
        return [], 0
    return entries, offset


def _data_files(directory: Path) -> list[tuple[str, int, str]]:
    """Return kind, sequence number and name of all data files, base files first."""
    if not directory.is_dir():
        return []
    found = [_FILE_NAME.fullmatch(each.name) for each in directory.iterdir()]
    return sorted((each[2][:4], int(each[1]), each[0]) for each in found if each is not None)


def _rebuild_manifest(directory: Path) -> list[_Entry]:
    """Return the entries of the lost manifest, or nothing if the files do not determine them.

    After a rewrite the server deletes the former base file and then its incremental files. A crash
    in between leaves incremental files that the new base file already contains. Loading them again
    would corrupt counters, so files that are older than the base file prevent the repair.
    """
    files = _data_files(directory)
    bases = [(number, name) for kind, number, name in files if kind == "base"]
    logs = [(number, name) for kind, number, name in files if kind == "incr"]
    if len(bases) != 1:
        return []
    if [number for number, _ in logs] != list(range(logs[0][0], logs[-1][0] + 1)) if logs else []:
        return []
    written_at = (directory / bases[0][1]).stat().st_mtime_ns
    if any((directory / name).stat().st_mtime_ns < written_at for _, name in logs[:-1]):
        return []
    listed = [(*bases[0], "b"), *((*each, "i") for each in logs)]
    return [
        _Entry(name, kind, f"file {name} seq {number} type {kind}\n")
        for number, name, kind in listed
    ]


def _check_base(directory: Path, entry: _Entry) -> FileDamage | None:
    """Check the base file. It cannot be repaired, because all later files depend on all of it."""
    file = directory / entry.name
    size = _size(file)
    offset, problem = size, ""
    if not file.exists():
        offset, problem = 0, "The base file is missing."
    elif not entry.name.endswith(".rdb"):
        found = _check_format(file)
        offset, problem = found or (size, "")
    else:
        said = _run_checker(_CHECK_RDB, file)
        end = _RDB_END.search(said)
        if NEWER_FORMAT.search(said):
            raise StoreError(
                f"The server that is installed cannot read {file}.", hint=NEWER_FORMAT_HINT
            )
        if error := _RDB_ERROR.search(said):
            offset, problem = int(error[1]), f"The snapshot is not valid: {error[2].strip()}."
        elif end is None:
            raise StoreError(f"The store's checker failed on {file}: {_last_line(said)}")
        elif int(end[1]) < size and not _is_complete(file, int(end[1])):
            offset, problem = int(end[1]), "The snapshot is followed by invalid bytes."
    if not problem:
        return None
    return FileDamage(
        file=entry.name,
        problem=problem,
        size_bytes=size,
        offset=offset,
        cut_bytes=0,
        repairable=False,
    )


def _check_log(folder: Path, entry: _Entry) -> FileDamage | None:
    """Check an incremental file."""
    file = folder / DIRECTORY / entry.name
    size = _size(file)
    if not file.exists():
        offset, problem = 0, "The file is missing."
    elif found := _check_format(file) or _check_commands(folder, file):
        offset, problem = found
    else:
        return None
    incomplete = file.exists() and _is_incomplete(file, offset)
    return FileDamage(
        file=entry.name,
        problem="The file ends within a command." if incomplete else problem,
        size_bytes=size,
        offset=offset,
        cut_bytes=size - offset,
        incomplete=incomplete,
    )


def _check_format(file: Path) -> tuple[int, str] | None:
    """Return the offset of the first byte that is not a complete command or transaction."""
    if not _size(file):
        return None
    said = _run_checker(_CHECK_AOF, file)
    found = _AOF_RESULT.search(said)
    if found is None:
        raise StoreError(f"The store's checker failed on {file}: {_last_line(said)}")
    size, valid_bytes = int(found[1]), int(found[2])
    return (
        (valid_bytes, "The file contains bytes that are not a command.")
        if (valid_bytes < size)
        else None
    )


def _check_commands(folder: Path, file: Path) -> tuple[int, str] | None:
    """Return the offset of the command that the server refused at its last start.

    The checker reads the format alone. A damaged command name passes it, but stops the server,
    which reports the name.
    """
    try:
        refused = (folder / "refused").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    found = _UNKNOWN_COMMAND.search(refused)
    if found is None or found[1] != file.name:
        return None
    for offset, name in _commands(file, 0):
        if name.decode(errors="replace").replace("\r", " ").replace("\n", " ") == found[2]:
            return offset, f"The command '{found[2]}' does not exist."
    return None


def _run_checker(checker: str, file: Path) -> str:
    """Run a checker of the server program and return what it prints."""
    program = server_program()
    environment = {**os.environ, "LC_ALL": "C"}
    probe = subprocess.run(  # noqa: S603 (the program of the store)
        [checker, "--version"],
        executable=program,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment,
        check=False,
    )
    if b"server v=" in probe.stdout:
        raise StoreError(
            f"The store's program {program} cannot check the files of a store.",
            hint="Install Valkey, or Redis 7.0 or later.",
        )
    done = subprocess.run(  # noqa: S603 (the program of the store)
        [checker, file.name],
        executable=program,
        cwd=file.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment,
        check=False,
    )
    return (done.stdout + done.stderr).decode(errors="replace")


def _last_line(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


# -- Commands --------------------------------------------------------------------------------


#: Length from which an argument is compared with the rest of the file before it is read, because a
#: damaged length can be any number.
_READ_BYTES_MAX = 1 << 20


class _InvalidCommandError(Exception):
    """The bytes at this position are not a command."""


def _commands(file: Path, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield position and name of each command; commands of a transaction have the same position.

    Raise EOFError if the file ends within a command or a transaction, and _InvalidCommandError at
    bytes that are not a command.
    """
    with file.open("rb") as log:
        log.seek(offset)
        transaction: int | None = None
        while True:
            start = log.tell()
            first = log.read(1)
            if not first:
                if transaction is not None:
                    raise EOFError
                return
            if first == b"#":
                log.readline()  # A time stamp.
                continue
            name = _read_command(log, first)
            if name.lower() == b"multi":
                transaction = start
            yield (start if transaction is None else transaction), name
            if name.lower() == b"exec":
                transaction = None


def _read_command(log: IO[bytes], first: bytes) -> bytes:
    """Read one command and return its name."""
    arguments = [_read_text(log) for _ in range(_read_number(log, first, b"*"))]
    if not arguments:
        raise _InvalidCommandError
    return arguments[0]


def _read_text(log: IO[bytes]) -> bytes:
    size = _read_number(log, log.read(1), b"$")
    if size > _READ_BYTES_MAX and log.tell() + size > os.fstat(log.fileno()).st_size:
        raise EOFError
    text = log.read(size + 2)
    if len(text) < size + 2:
        raise EOFError
    if not text.endswith(b"\r\n"):
        raise _InvalidCommandError
    return text[:-2]


def _read_number(log: IO[bytes], first: bytes, kind: bytes) -> int:
    line = log.readline(24)
    if first and first != kind:
        raise _InvalidCommandError
    digits = line.removesuffix(b"\r\n")
    if digits == line:
        # The file ends within the number, so the line has only digits and maybe a carriage return.
        if len(line) < 24 and (not line or line.removesuffix(b"\r").isdigit() or line == b"\r"):
            raise EOFError
        raise _InvalidCommandError
    if not digits.isdigit():
        raise _InvalidCommandError
    return int(digits)


def _is_incomplete(file: Path, offset: int) -> bool:
    """Return True if the rest of the file is the beginning of a command or transaction."""
    try:
        for _ in _commands(file, offset):
            pass
    except EOFError:
        return True
    except _InvalidCommandError:
        return False
    return False


def _is_complete(file: Path, offset: int) -> bool:
    """Return True if the rest of the file consists of complete commands."""
    try:
        for _ in _commands(file, offset):
            pass
    except (EOFError, _InvalidCommandError):
        return False
    return True


# -- Repair ----------------------------------------------------------------------------------


def repair_files(folder: Path, check: StoreCheck) -> list[Path]:
    """Repair the damage that `check` found. Return the copies of the files as they were.

    Raise StoreFileDamagedError, with nothing changed, if the damage cannot be repaired or if there
    is no room for the copies. The caller must hold the locks of `stopped_store` since the check.
    """
    directory = folder / DIRECTORY
    if not check.repairable:
        raise StoreFileDamagedError(
            f"The files of the store in {folder} cannot be repaired.", hint=RESTORE
        )
    damaged = [directory / each.file for each in check.damages]
    changed = {file for file in damaged if file.exists()}
    removed = [directory / name for name in check.removed]
    kept = [name for name in check.files if name not in check.removed]
    missing = {file.name for file in damaged if not file.exists()}
    if (directory / MANIFEST).exists() and (removed or missing):
        changed.add(directory / MANIFEST)
    copies = [_copy(file) for file in sorted(changed)]
    # Rename the files before the manifest changes. After a crash in between, a second repair
    # removes the missing files from the manifest. In the other order the server could overwrite a
    # file that has no entry.
    copies += [_set_aside(file) for file in removed if file.exists()]
    _sync_directory(directory)
    if directory / MANIFEST in damaged or removed or missing:
        _write_manifest(directory, [name for name in kept if name not in missing])
    for damage in check.damages:
        if damage.cut_bytes and (file := directory / damage.file) in changed:
            _truncate(file, damage.offset)
    with contextlib.suppress(FileNotFoundError):
        (folder / "refused").unlink()
    return copies


#: Remedy for damage that cannot be repaired.
RESTORE = (
    f"Restore the directory `{DIRECTORY}` from a backup. Without a backup, move it away: the store"
    " then starts empty, and `waystation store accept-loss` accepts the loss."
)


def _copy(file: Path) -> Path:
    """Copy a file beside itself, complete and on disk, unless a copy of this content exists."""
    for earlier in file.parent.glob(f"{file.name}.damaged-*"):
        if earlier.suffix != ".new" and filecmp.cmp(file, earlier, shallow=False):
            return earlier
    target = _free_name(file)
    scratch = target.with_name(f"{target.name}.new")
    try:
        with file.open("rb") as source, open_private(scratch, "wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
    except OSError as error:
        scratch.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise StoreFileDamagedError(
            f"The disk has no room for a copy of {file} ({_size(file):,} bytes). Nothing was"
            " changed.",
            hint="Free disk space, then repeat the command.",
        ) from error
    scratch.rename(target)
    _sync_directory(file.parent)
    return target


def _set_aside(file: Path) -> Path:
    """Rename a file, so that it is kept but the server never uses its name again."""
    return file.rename(_free_name(file))


def _free_name(file: Path) -> Path:
    number = 1
    while (name := file.with_name(f"{file.name}.damaged-{number}")).exists():
        number += 1
    return name


def _write_manifest(directory: Path, names: list[str]) -> None:
    """Replace the manifest by one that lists `names`."""
    lines = {each.name: each.line for each in _read_manifest(directory)[0]}
    scratch = directory / f"{MANIFEST}.new"
    with open_private(scratch, "w") as manifest:
        manifest.write("".join(lines[name] for name in names))
        manifest.flush()
        os.fsync(manifest.fileno())
    scratch.replace(directory / MANIFEST)
    _sync_directory(directory)


def _truncate(file: Path, size: int) -> None:
    with file.open("r+b") as opened:
        opened.truncate(size)
        os.fsync(opened.fileno())


def _sync_directory(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
