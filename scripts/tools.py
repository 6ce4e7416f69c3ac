"""Install the tools of `make verify`: Debian packages, the oldest Spark, and real ACA-Py agents.

Debian packages are installed when this runs as root. `.venv-spark40` is an environment with the
oldest supported PySpark: `make verify` runs the tests with the mark `spark_oldest` in it, and fails
without it. The ACA-Py environment is `.venv-acapy`; it needs Python 3.12 or newer. ACA-Py's plugin
`redis_events` is on no package registry: it is looked for in WAYSTATION_TEST_ACAPY_PLUGIN and
beside the checkout, and where it is missing, the tests with real agents are skipped. Every other
missing tool is an error in CI.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Program → Debian package.
TOOLS = {"chromium": "chromium", "strace": "strace"}
SPARK = ROOT / ".venv-spark40"
#: The last release of the oldest supported version, and packages of the tests.
SPARK_PACKAGES = (
    *("--editable", ".[history,postgres]", "pyspark==4.0.5"),
    *("hypothesis", "pytest", "pytest-asyncio", "pytest-timeout"),
)
ACAPY = ROOT / ".venv-acapy"
ACAPY_PACKAGES = ("acapy-agent~=1.6.1", "redis>=5.2.1,<6")
PLUGIN = Path(
    os.environ.get("WAYSTATION_TEST_ACAPY_PLUGIN")
    or ROOT.parent / "shared" / "partners" / "acapy_redis_events"
)


def main() -> int:
    """Return the exit code: 1 without the oldest Spark, or if another tool is missing in CI."""
    missing = missing_packages()
    unusable = missing_spark()
    if unusable:
        print(f"tools: {unusable}", file=sys.stderr, flush=True)
        return 1
    if PLUGIN.is_dir():
        missing += missing_acapy()
    else:
        print("tools: no plugin redis_events, so no tests with real ACA-Py agents", flush=True)
    for sentence in missing:
        print(f"tools: {sentence}; the tests that need it are skipped", flush=True)
    return 1 if missing and os.environ.get("CI") else 0


def missing_packages() -> list[str]:
    """Install missing Debian packages. Return a sentence for each that is still missing."""
    missing = {name: package for name, package in TOOLS.items() if not shutil.which(name)}
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"tools: installing {', '.join(missing.values())}", flush=True)
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-qq", "--no-install-recommends", *missing.values()]
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL, check=False)
        missing = {name: package for name, package in TOOLS.items() if not shutil.which(name)}
    return [f"{name} is missing (Debian package {package})" for name, package in missing.items()]


def missing_spark() -> str:
    """Create the environment with the oldest Spark. Return a sentence if that is impossible."""
    # All packages except Spark have the same versions as in `.venv`.
    pins = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    pins = [pin for pin in pins if not pin.startswith(("py4j==", "pyspark=="))]
    parts = ["".join(pins), (ROOT / "pyproject.toml").read_text(), *SPARK_PACKAGES]
    wanted = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    stamp = SPARK / ".installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    print(f"tools: installing pyspark 4.0 into {SPARK.name} (once; a minute or two)", flush=True)
    if subprocess.run([sys.executable, "-m", "venv", "--clear", SPARK], check=False).returncode:
        return f"Python's module venv cannot create {SPARK.name}"
    constraints = SPARK / "constraints.txt"
    constraints.write_text("".join(pins))
    pip = [str(SPARK / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    pip += ["--disable-pip-version-check", "--constraint", str(constraints), *SPARK_PACKAGES]
    if subprocess.run(pip, cwd=ROOT, check=False).returncode:
        return f"pip cannot install the packages of {SPARK.name}; its reason is above"
    # The stamp is written last, so that an interrupted installation is repeated.
    stamp.write_text(wanted)
    return ""


def missing_acapy() -> list[str]:
    """Create the environment with ACA-Py. Return a sentence if it is missing."""
    if os.environ.get("WAYSTATION_TEST_ACAPY"):
        return []
    stamp = ACAPY / ".installed"
    if stamp.exists() and stamp.read_text() == " ".join(ACAPY_PACKAGES):
        return []
    python = newer_python()
    if python is None:
        return ["Python 3.12 or newer is missing, which ACA-Py needs"]
    print(f"tools: installing {', '.join(ACAPY_PACKAGES)} into {ACAPY.name}", flush=True)
    pip = [str(ACAPY / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    for command in (
        [python, "-m", "venv", "--clear", str(ACAPY)],
        [*pip, "--disable-pip-version-check", *ACAPY_PACKAGES],
    ):
        if subprocess.run(command, check=False).returncode != 0:
            return ["ACA-Py could not be installed"]
    # The stamp is written last, so that an interrupted installation is repeated.
    stamp.write_text(" ".join(ACAPY_PACKAGES))
    return []


def newer_python() -> str | None:
    """Return a Python that ACA-Py supports, from PATH or beside the running one (pyenv)."""
    siblings = Path(sys.base_prefix).parent
    found = [str(each) for minor in (13, 12) for each in siblings.glob(f"3.{minor}.*/bin/python")]
    for python in [*filter(None, map(shutil.which, ("python3.13", "python3.12"))), *found]:
        works = subprocess.run([python, "-m", "venv", "-h"], capture_output=True, check=False)
        if works.returncode == 0:
            return python
    return None


if __name__ == "__main__":
    sys.exit(main())
