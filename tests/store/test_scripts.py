"""Script loader: includes, variants, registration; and the header rules of every Lua file."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import pytest

import waystation
from tests.helpers.store_faults import plain_server, store_at
from waystation.acapy import mirror, outbound, retry_set
from waystation.channels import service as channels
from waystation.db import definitions
from waystation.errors import StoreError
from waystation.history import status
from waystation.pools import (
    answers,
    assignments,
    dead_letters,
    mail,
    members,
    mirror_claim,
    mirrored,
    pools,
)
from waystation.store import scripts, time_machine
from waystation.store.client import Store, parse_info
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.scripts import Script, registered_scripts, script
from waystation.subscriptions import commits, looking, operating, operations, shard_store
from waystation.topics import dedup
from waystation.topics import service as topics
from waystation.transactions import (
    archiving,
    entry,
    holding,
    nodes,
    pipelines,
    progress,
    restoring,
    signals,
)

PACKAGE = Path(waystation.__file__).parent
FILES = sorted(PACKAGE.rglob("*.lua"))
#: Files that are run; files with an underscore are only included.
SCRIPTS = [file for file in FILES if not file.name.startswith("_")]


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def code_of(file: Path) -> list[str]:
    lines = (line.strip() for line in file.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("--")]


@pytest.fixture
def lua_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the Lua folder of an importable package `loose_package`."""
    folder = tmp_path / "loose_package" / "lua"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "loose_package", raising=False)
    scripts._read.cache_clear()
    return folder


# -- Loader ----------------------------------------------------------------------------------


def test_script_is_registered_once_with_sha_of_each_variant() -> None:
    publish = script("waystation.channels", "publish")
    assert script("waystation.channels", "publish") is publish
    assert publish in registered_scripts()
    for source, sha in zip(publish.sources, publish.shas, strict=True):
        assert hashlib.sha1(source).hexdigest().encode() == sha


def test_include_of_other_part_is_replaced_by_its_text() -> None:
    source = script("waystation.logs", "append").sources[0].decode()
    assert "@include" not in source
    assert "local function now()" in source
    assert "local function log_append(" in source


def test_include_is_resolved_recursively_and_once(lua_folder: Path) -> None:
    (lua_folder / "_first.lua").write_text('--- @include "_second"\nlocal first = second\n')
    (lua_folder / "_second.lua").write_text("local second = 2\n")
    (lua_folder / "verb.lua").write_text(
        '#!lua\n--- @include "_first"\n--- @include "_second"\nreturn first\n'
    )
    source = Script("loose_package", "verb").sources[0]
    assert source == b"#!lua\nlocal second = 2\nlocal first = second\nreturn first\n"


def test_script_in_test_mode_adds_time_shift_only_there() -> None:
    stamp = script("waystation.store", "stamp_dataset")
    plain, shifted = (source.decode() for source in stamp.sources[:2])
    assert "waystation.time" not in plain
    assert "'waystation.time', 'shift_ms'" in shifted
    assert stamp.shas[0] != stamp.shas[1]
    # A script that reads no time is the same in both modes.
    fetch = script("waystation.channels", "fetch")
    assert fetch.sources[0] == fetch.sources[1]


def test_script_with_repeatable_header_line_is_repeatable() -> None:
    assert script("waystation.channels", "publish").repeatable
    assert not script("waystation.store", "advance_time").repeatable


def test_script_without_shebang_line_is_rejected() -> None:
    with pytest.raises(StoreError, match=r"waystation\.store/_now must begin with #!lua"):
        Script("waystation.store", "_now")


def test_script_without_file_is_rejected_and_not_registered() -> None:
    with pytest.raises(StoreError, match=r"absent\.lua does not exist in waystation\.store"):
        script("waystation.store", "absent")
    assert not [each for each in registered_scripts() if each.name == "absent"]


@pytest.mark.parametrize("include", ["_nowhere", "store/_nowhere", "nopart/_now"])
def test_script_with_missing_include_is_rejected(lua_folder: Path, include: str) -> None:
    (lua_folder / "verb.lua").write_text(f'#!lua\n--- @include "{include}"\nreturn 1\n')
    name = include.rpartition("/")[2]
    with pytest.raises(StoreError, match=rf"loose_package/verb includes '{name}'"):
        Script("loose_package", "verb")


async def test_connection_loads_all_scripts_before_first_call(
    store_server: EmbeddedServer,
) -> None:
    for test_mode in (False, True):
        async with store_at(store_server.address, test_mode=test_mode) as store:
            await store.call("SCRIPT", "FLUSH")
        async with store_at(store_server.address, test_mode=test_mode) as store:
            shas = [each.shas[test_mode] for each in registered_scripts()]
            assert await store.call("SCRIPT", "EXISTS", *shas) == [1] * len(shas)


async def test_second_connection_loads_no_script() -> None:
    with plain_server() as server:
        async with store_at(server.address) as first:
            assert await first.call("PING") == b"PONG"
            scripts = registered_scripts()
            assert await script_commands(first) == {"exists": 1, "load": len(scripts)}

            async with store_at(server.address) as second:
                assert await second.call("PING") == b"PONG"
            assert await script_commands(first) == {"exists": 2, "load": len(scripts)}

            # A connection after a loss of all scripts but one loads only those that are missing.
            await first.call("SCRIPT", "FLUSH")
            await first.call("SCRIPT", "LOAD", scripts[0].sources[0])
            async with store_at(server.address) as third:
                assert await third.call("PING") == b"PONG"
            assert await script_commands(first) == {"exists": 3, "load": 2 * len(scripts)}


async def script_commands(store: Store) -> dict[str, int]:
    """Return how often the server ran SCRIPT EXISTS and SCRIPT LOAD, for all its clients."""
    (text,) = (await store.call_each("INFO", "commandstats")).values()
    counts = parse_info(text)
    return {
        name: int(counts[f"cmdstat_script|{name}"].split(",")[0].removeprefix("calls="))
        for name in ("exists", "load")
    }


# -- Rules for Lua files ---------------------------------------------------------------------


def test_lua_file_with_underscore_is_included_and_not_registered() -> None:
    assert len(SCRIPTS) > 100
    for file in FILES:
        assert file.read_text().startswith("#!lua") != file.name.startswith("_"), file
    included = {
        (PACKAGE / part / "lua" if part else file.parent) / f"{name}.lua"
        for file in FILES
        for part, name in re.findall(
            r'^--- @include "(?:([a-z_/]+)/)?([a-z_]+)"$', file.read_text(), re.MULTILINE
        )
    }
    variants = {file for file in FILES if file.name.endswith(".time_machine.lua")}
    assert included == set(FILES) - set(SCRIPTS) - variants


@pytest.mark.parametrize("file", SCRIPTS, ids=name_of)
def test_script_header_states_flags_purpose_keys_arguments_and_reply(file: Path) -> None:
    lines = file.read_text().splitlines()
    assert re.fullmatch(r"#!lua( flags=[a-z,-]+)?", lines[0])
    header = []
    for line in lines[1:]:
        if not line.startswith("--") or line.startswith("---"):
            break
        header.append(line)
    words = [line.split()[1] for line in header if len(line.split()) > 1]
    for word in ("KEYS", "ARGV", "Reply"):
        assert word in words, f"the header has no line {word}"
    assert header[0].endswith(".") or header[1].endswith("."), (
        "the first sentence states the purpose"
    )


@pytest.mark.parametrize("file", SCRIPTS, ids=name_of)
def test_script_file_has_a_module_that_registers_it(file: Path) -> None:
    # The modules imported above register all scripts; a script without a module is dead code.
    assert channels
    assert definitions
    assert dedup
    assert status
    assert time_machine
    assert topics
    assert all((archiving, entry, holding, nodes, pipelines, progress, restoring, signals))
    assert all((commits, looking, operating, operations, shard_store))
    assert all((answers, assignments, dead_letters, mail, members, mirror_claim, mirrored, pools))
    assert all((mirror, outbound, retry_set))
    package = ".".join(("waystation", *file.parent.parent.relative_to(PACKAGE).parts))
    assert (package, file.stem) in {(each.package, each.name) for each in registered_scripts()}


@pytest.mark.parametrize("file", SCRIPTS, ids=name_of)
def test_script_reads_time_only_through_include(file: Path) -> None:
    assert not [line for line in code_of(file) if re.search(r"call\('TIME'", line)]
