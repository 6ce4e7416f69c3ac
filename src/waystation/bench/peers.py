"""Peers: other systems that we are measured against, each in a virtual environment of its own.

An environment is made when it is missing, which takes as long as pip takes and is no part of a
measurement. A peer that cannot be installed is missing, and the bars that need it fail by name:
nobody is beaten by not being there.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from waystation.errors import WaystationError

#: Where environments are kept: beside the work, ignored by git, deleted without regret.
PEERS_FOLDER = Path(".bench-peers")
_INSTALL_SECONDS_MAX = 600
_WORDS_MAX = 300


class PeerMissingError(WaystationError):
    """A peer cannot be installed here, so nothing can be said about it."""

    code = "bench.peer-missing"


@dataclass(frozen=True)
class Peer:
    """Another system: its name, and what pip has to install for it."""

    name: str
    requirements: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """Changes with the requirements and with our Python."""
        text = "\n".join((sys.version, *self.requirements))
        return hashlib.sha256(text.encode()).hexdigest()


def ensure_peer(peer: Peer, folder: Path = PEERS_FOLDER) -> Path:
    """The interpreter of a peer's environment, made now if need be; PeerMissingError if not."""
    home = (folder / peer.name).absolute()
    python = home / "bin" / "python"
    stamp = home / ".installed"
    if stamp.exists() and stamp.read_text(encoding="ascii") == peer.fingerprint:
        return python
    _run(peer, [sys.executable, "-m", "venv", "--clear", str(home)])
    if peer.requirements:
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run(peer, [*install, *peer.requirements])
    # The stamp comes last: an interrupted installation is simply done again.
    stamp.write_text(peer.fingerprint, encoding="ascii")
    return python


def _run(peer: Peer, command: list[str]) -> None:
    try:
        done = subprocess.run(  # noqa: S603 (our own interpreter, requirements from our own code)
            command, capture_output=True, text=True, timeout=_INSTALL_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissingError(f"The peer {peer.name} cannot be installed: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-_WORDS_MAX:]
        raise PeerMissingError(f"The peer {peer.name} cannot be installed: {said}")
