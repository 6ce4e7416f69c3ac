"""Sets up .venv for `make`: standard library only, idempotent, says what it does.

python3 scripts/setup.py core      what `make demo` needs
python3 scripts/setup.py dev       what `make test` needs on top
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
EXTRAS = {"core": "[history]", "dev": "[dev,history]"}


def main() -> int:
    """Returns the exit code; every failure is one sentence on standard error."""
    wanted = sys.argv[1] if len(sys.argv) == 2 else ""
    if wanted not in EXTRAS:
        return fail(f"usage: setup.py {'|'.join(EXTRAS)}")
    if sys.version_info < (3, 11):
        found = ".".join(map(str, sys.version_info[:3]))
        return fail(f"Python 3.11 or newer is needed, this is {found}; say make PYTHON=python3.12.")
    stamp = VENV / f".installed-{wanted}"
    if stamp.exists() and stamp.read_text() == fingerprint():
        return 0
    if not usable() and not create():
        return 1
    return install(wanted, stamp)


def usable() -> bool:
    """Whether there is an environment with pip; an interrupted set-up leaves one without."""
    python = VENV / "bin" / "python"
    if not python.exists():
        return False
    asked = [str(python), "-m", "pip", "--version"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def create() -> bool:
    """Makes the virtual environment."""
    say(f"making {VENV.name} with Python {sys.version.split()[0]}")
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        fail(
            "Python's venv module does not work here; on Debian and Ubuntu install the package "
            f"python3-venv. It said: {(made.stdout + made.stderr).strip()[-300:]}"
        )
    return made.returncode == 0


def install(wanted: str, stamp: Path) -> int:
    """Installs the project, editable, with the versions of constraints.txt."""
    say(f"installing waystation{EXTRAS[wanted]} and what it needs (once; a minute or two)")
    begun = time.monotonic()
    command = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    command += ["--disable-pip-version-check", "--constraint", "constraints.txt"]
    command += ["--editable", f".{EXTRAS[wanted]}"]
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        return fail("pip could not install the packages; its reason stands above.")
    # The stamp comes last: an interrupted installation is simply done again.
    stamp.write_text(fingerprint())
    say(f"installed in {time.monotonic() - begun:.0f} s")
    return 0


def fingerprint() -> str:
    """Changes whenever what must be installed changes."""
    content = (ROOT / "pyproject.toml").read_bytes() + (ROOT / "constraints.txt").read_bytes()
    return hashlib.sha256(content).hexdigest()


def say(text: str) -> None:
    """Progress, for people."""
    print(f"setup: {text}", flush=True)


def fail(text: str) -> int:
    """A reason, for people; returns the exit code."""
    print(f"setup: {text}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
