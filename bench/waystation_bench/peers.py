"""Peers: other systems that we are measured against, each in an environment of its own.

An environment is made when it is missing, which takes as long as pip takes and is no part of a
measurement. A peer that cannot be installed is missing, and the bars that need it fail by name:
nobody is beaten by not being there.
"""

from __future__ import annotations

import hashlib
import shutil
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
    """Another system in Python: its name, and what pip has to install for it."""

    name: str
    requirements: tuple[str, ...]
    #: Whether a quick run has it, too.
    quick: bool = True

    @property
    def fingerprint(self) -> str:
        """Changes with the requirements and with our Python."""
        return _digest(sys.version, *self.requirements)

    def opens(self, home: Path) -> Path:
        """What runs it: the interpreter of its virtual environment."""
        return home / "bin" / "python"

    def install(self, home: Path) -> None:
        """Makes its environment, from nothing."""
        _run(self, [sys.executable, "-m", "venv", "--clear", str(home)])
        if self.requirements:
            pip = [str(self.opens(home)), "-m", "pip", "install", "--disable-pip-version-check"]
            _run(self, [*pip, "--quiet", *self.requirements])


@dataclass(frozen=True)
class NodePeer(Peer):
    """One that runs on Node.js, if that is there: its packages come by npm."""

    @property
    def fingerprint(self) -> str:
        """Changes with the packages."""
        return _digest(*self.requirements)

    def opens(self, home: Path) -> Path:
        """The folder that has its packages."""
        return home

    def install(self, home: Path) -> None:
        """Has npm fetch its packages."""
        npm = shutil.which("npm")
        if npm is None or shutil.which("node") is None:
            raise PeerMissingError(f"The peer {self.name} needs Node.js and npm.")
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.json").write_text("{}", encoding="ascii")
        quiet = ("--no-audit", "--no-fund", "--silent", "--prefix", str(home))
        _run(self, [npm, "install", *quiet, *self.requirements])


def ensure_peer(peer: Peer, folder: Path = PEERS_FOLDER) -> Path:
    """What runs a peer, installed now if need be; PeerMissingError if it cannot be."""
    home = (folder / peer.name).absolute()
    stamp = home / ".installed"
    if not stamp.exists() or stamp.read_text(encoding="ascii") != peer.fingerprint:
        peer.install(home)
        # The stamp comes last: an interrupted installation is simply done again.
        stamp.write_text(peer.fingerprint, encoding="ascii")
    return peer.opens(home)


def _digest(*words: str) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


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
