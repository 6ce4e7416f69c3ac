"""Lua scripts of the package: one file per operation, with includes.

A script file starts with `#!lua` and its flags, then a header that states purpose, KEYS, ARGV,
reply and errors. A header line `-- repeatable` declares that a second run with the same arguments
leaves the same state as the first, so the client sends the script again after a lost reply.

The line `--- @include "<part>/_<name>"` is replaced by `lua/_<name>.lua` of package
`waystation.<part>`; a name without a part is a file of the script's own folder. Included files may
include others. Each file is included once per script, at its first include line.

The loader renders four variants of each script, so that production does not pay for test mode and
a single server does not pay for the cluster:

- In test mode an include prefers `_<name>.time_machine.lua` (only `store/_now` has one).
- On a cluster the script first reads a key of its slot that never exists. While the slot moves to
  another node, the cluster refuses that read, and with it the whole script before it has written.
  Without the read the script could run on those of its keys that have not moved yet, because the
  cluster does not know the keys that a script derives by itself.
- In test mode on a cluster, scripts may cross slots, because one key keeps the time of all slots.
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib import resources

from waystation.errors import StoreError

_INCLUDE = re.compile(r'^--- @include "(?:([a-z_/]+)/)?([a-z_]+)"\n', re.MULTILINE)

_READ_ABSENT_KEY = b"""
do
  local key = KEYS[1]
  if string.find(key, '^[^{]*{[^}]+}') then
    redis.call('EXISTS', key .. ':waystation.none')
  elseif not string.find(key, '}') then
    redis.call('EXISTS', '{' .. key .. '}:waystation.none')
  end
end
"""


def variant(*, test_mode: bool, cluster: bool) -> int:
    """Return the index of the script variant that a client runs."""
    return int(test_mode) + 2 * int(cluster)


class Script:
    """A Lua script with its includes resolved, in all four variants. Immutable."""

    __slots__ = ("name", "package", "repeatable", "shas", "sources")

    def __init__(self, package: str, name: str) -> None:
        self.package = package
        self.name = name
        plain = _Renderer(package, name, test_mode=False).source()
        test = _Renderer(package, name, test_mode=True).source()
        #: Sources and their SHA-1 digests, indexed by `variant`.
        sources = (plain.encode(), test.encode())
        self.sources = (*sources, _on_cluster(sources[0]), _on_cluster(sources[1], crosses=True))
        self.shas = tuple(hashlib.sha1(source).hexdigest().encode() for source in self.sources)  # noqa: S324
        self.repeatable = "\n-- repeatable" in plain

    def __repr__(self) -> str:
        return f"<Script {self.package}/{self.name}>"


#: All scripts of the process by package and name.
_registered: dict[tuple[str, str], Script] = {}


def script(package: str, name: str) -> Script:
    """Return the script `lua/<name>.lua` of `package`; read and register it at the first call.

    Raise StoreError if the file, its first line or one of its includes is missing.
    """
    found = _registered.get((package, name))
    if found is None:
        found = _registered[package, name] = Script(package, name)
    return found


def registered_scripts() -> list[Script]:
    """Return all scripts that modules of this process have registered."""
    return list(_registered.values())


class _Renderer:
    """Resolves the includes of one script. The state is the set of files included so far."""

    def __init__(self, package: str, name: str, *, test_mode: bool) -> None:
        self._package = package
        self._name = name
        self._test_mode = test_mode
        self._included: set[tuple[str, str]] = set()

    def source(self) -> str:
        """Return the script's text with all includes replaced."""
        text = _read(self._package, self._name)
        if text is None:
            raise StoreError(f"Script {self._name}.lua does not exist in {self._package}.")
        if not text.startswith("#!lua"):
            raise StoreError(f"Script {self._package}/{self._name} must begin with #!lua.")
        return self._resolve(self._package, text)

    def _resolve(self, package: str, text: str) -> str:
        return _INCLUDE.sub(lambda match: self._include(package, match[1], match[2]), text)

    def _include(self, including: str, part: str | None, name: str) -> str:
        package = including if part is None else f"waystation.{part.replace('/', '.')}"
        if (package, name) in self._included:
            return ""
        self._included.add((package, name))
        text = _read(package, f"{name}.time_machine") if self._test_mode else None
        if text is None:
            text = _read(package, name)
        if text is None:
            raise StoreError(
                f"Script {self._package}/{self._name} includes {name!r} of {package},"
                " which does not exist."
            )
        return self._resolve(package, text)


def _on_cluster(source: bytes, *, crosses: bool = False) -> bytes:
    first, _, rest = source.partition(b"\n")
    if crosses:
        first += (
            b",allow-cross-slot-keys" if b"flags=" in first else b" flags=allow-cross-slot-keys"
        )
    return first + _READ_ABSENT_KEY + rest


@functools.cache
def _read(package: str, name: str) -> str | None:
    try:
        file = resources.files(package) / "lua" / f"{name}.lua"
    except ModuleNotFoundError:
        return None
    return file.read_text(encoding="utf-8") if file.is_file() else None
