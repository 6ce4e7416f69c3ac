"""Makes sure that `make verify` finds its tools: Debian's packages, installed when we are root.

Elsewhere it says which are missing; tests that need them then skip, except in CI, where they fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

#: Program → Debian package.
TOOLS = {"chromium": "chromium", "strace": "strace"}


def main() -> int:
    """Returns the exit code; a missing tool is fatal in CI alone."""
    missing = {name: package for name, package in TOOLS.items() if not shutil.which(name)}
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"tools: installing {', '.join(missing.values())}", flush=True)
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-qq", "--no-install-recommends", *missing.values()]
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL, check=False)
        missing = {name: package for name, package in TOOLS.items() if not shutil.which(name)}
    for name, package in missing.items():
        print(f"tools: {name} is missing (Debian package {package}); what needs it is skipped")
    return 1 if missing and os.environ.get("CI") else 0


if __name__ == "__main__":
    sys.exit(main())
