"""Loads Lua scripts: one file = one verb, shared pieces by include.

A script file begins with `#!lua`, optionally with flags, and a header that lists KEYS, ARGV,
reply and errors. The line `--- @include "name"` is replaced by `name.lua` of the same folder or
of `store/lua/`. A header line `-- repeatable` says that running the script twice with the same
arguments leaves what running it once does, so the client may send it again when a reply was lost.

Each has four variants, so that nobody pays for what another needs:

- Test mode has its own includes (`now.time_machine.lua` instead of `now.lua`).
- On a cluster a script first looks for a key of its slot that is never there. While a slot moves to
  another node key by key, that look is refused, and with it the script, before it has written. It
  would otherwise work on a part of its keys: of those that it names by itself a cluster knows
  nothing beforehand. On a cluster test mode may cross slots: its time is one for all.
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib import resources

from waystation.errors import StoreError

_INCLUDE = re.compile(r'^--- @include "([a-z_]+)"\n', re.MULTILINE)
_SHARED = "waystation.store"

_LOOK = b"""
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
    """Which of the four variants of each script a client runs."""
    return int(test_mode) + 2 * int(cluster)


class Script:
    """One verb of the store. Immutable; the store client runs it."""

    __slots__ = ("name", "package", "repeatable", "shas", "sources")

    def __init__(self, package: str, name: str) -> None:
        self.package = package
        self.name = name
        plain = _render(package, name, test_mode=False)
        test = _render(package, name, test_mode=True)
        #: Indexed by `variant`.
        sources = (plain.encode(), test.encode())
        self.sources = (*sources, _on_cluster(sources[0]), _on_cluster(sources[1], crosses=True))
        self.shas = tuple(hashlib.sha1(source).hexdigest().encode() for source in self.sources)  # noqa: S324
        self.repeatable = "\n-- repeatable" in plain

    def __repr__(self) -> str:
        return f"<Script {self.package}/{self.name}>"


#: Every script of the process; a connection loads them all before its first call.
_registered: dict[tuple[str, str], Script] = {}


def script(package: str, name: str) -> Script:
    """Returns the script `lua/<name>.lua` of `package`, loading it at the first call."""
    found = _registered.get((package, name))
    if found is None:
        found = _registered[package, name] = Script(package, name)
    return found


def registered_scripts() -> list[Script]:
    """All scripts that were asked for so far."""
    return list(_registered.values())


def _render(package: str, name: str, *, test_mode: bool) -> str:
    text = _read(package, name)
    if text is None:
        raise StoreError(f"There is no script {name}.lua in {package}.")
    if not text.startswith("#!lua"):
        raise StoreError(f"Script {package}/{name} must begin with #!lua.")

    def include(match: re.Match[str]) -> str:
        piece = match.group(1)
        variants = [f"{piece}.time_machine", piece] if test_mode else [piece]
        for variant in variants:
            for folder in (package, _SHARED):
                if (found := _read(folder, variant)) is not None:
                    return found
        raise StoreError(f"Script {package}/{name} includes {piece!r}, which does not exist.")

    return _INCLUDE.sub(include, text)


def _on_cluster(source: bytes, *, crosses: bool = False) -> bytes:
    first, _, rest = source.partition(b"\n")
    if crosses:
        first += (
            b",allow-cross-slot-keys" if b"flags=" in first else b" flags=allow-cross-slot-keys"
        )
    return first + _LOOK + rest


@functools.cache
def _read(package: str, name: str) -> str | None:
    file = resources.files(package) / "lua" / f"{name}.lua"
    return file.read_text(encoding="utf-8") if file.is_file() else None
