"""The script loader, and the house rules for every Lua file of the package."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

import waystation
from tests.stores import store_at
from waystation.acapy import mirror, outbound, retry_set
from waystation.channels import service as channels
from waystation.errors import StoreError
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
from waystation.store import time_machine
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
SHARED = PACKAGE / "store" / "lua"
#: Shared pieces: not scripts by themselves, and not verbs. By folder: a verb of one part may be
#: called as a piece of another.
INCLUDES = {
    (file.parent if (file.parent / f"{name}.lua") in FILES else SHARED, name)
    # Scripts of tests too: those of the parts to come include what is there for them.
    for file in (*FILES, *(Path(__file__).parent / "lua").glob("*.lua"))
    for name in re.findall(r'^--- @include "([a-z_]+)"$', file.read_text(), re.MULTILINE)
}
SCRIPTS = [file for file in FILES if (file.parent, file.name.partition(".")[0]) not in INCLUDES]


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def code_of(file: Path) -> list[str]:
    lines = (line.strip() for line in file.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("--")]


# -- The loader ------------------------------------------------------------------------------


def test_a_script_is_loaded_once_and_has_the_hash_that_the_store_computes() -> None:
    publish = script("waystation.channels", "publish")
    assert script("waystation.channels", "publish") is publish
    assert publish in registered_scripts()
    for source, sha in zip(publish.sources, publish.shas, strict=True):
        assert hashlib.sha1(source).hexdigest().encode() == sha


def test_an_include_is_replaced_by_its_text() -> None:
    stamp = script("waystation.store", "stamp")
    source = stamp.sources[False].decode()
    assert "@include" not in source
    assert "local function now()" in source


def test_test_mode_has_its_own_variant_and_production_pays_nothing_for_it() -> None:
    stamp = script("waystation.store", "stamp")
    plain, shifted = (source.decode() for source in stamp.sources[:2])
    assert "waystation.time" not in plain
    assert "'waystation.time', 'shift_ms'" in shifted
    assert stamp.shas[0] != stamp.shas[1]
    # And a script without time is the same in both.
    publish = script("waystation.channels", "publish")
    assert publish.sources[0] == publish.sources[1]


def test_a_header_line_makes_a_script_repeatable() -> None:
    assert script("waystation.channels", "publish").repeatable
    assert not script("waystation.store", "advance").repeatable


def test_a_script_without_its_first_line_is_refused_by_name() -> None:
    with pytest.raises(StoreError, match=r"waystation\.store/now must begin with #!lua"):
        Script("waystation.store", "now")


def test_a_missing_script_is_refused_by_name() -> None:
    with pytest.raises(StoreError, match=r"no script absent\.lua in waystation\.store"):
        script("waystation.store", "absent")
    assert not [each for each in registered_scripts() if each.name == "absent"]


def test_a_missing_include_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "loose_package"
    (package / "lua").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "lua" / "verb.lua").write_text('#!lua\n--- @include "nowhere"\nreturn 1\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(StoreError, match=r"loose_package/verb includes 'nowhere'"):
        Script("loose_package", "verb")


async def test_a_connection_knows_every_script_before_its_first_call(
    store_server: EmbeddedServer,
) -> None:
    for test_mode in (False, True):
        async with store_at(store_server.address, test_mode=test_mode) as store:
            await store.call("SCRIPT", "FLUSH")
        async with store_at(store_server.address, test_mode=test_mode) as store:
            shas = [each.shas[test_mode] for each in registered_scripts()]
            assert await store.call("SCRIPT", "EXISTS", *shas) == [1] * len(shas)


# -- The house rules -------------------------------------------------------------------------


def test_there_are_scripts_to_look_at() -> None:
    assert len(SCRIPTS) >= 7
    assert (SHARED, "now") in INCLUDES


@pytest.mark.parametrize("file", SCRIPTS, ids=name_of)
def test_a_script_opens_with_its_flags_and_a_header(file: Path) -> None:
    lines = file.read_text().splitlines()
    assert re.fullmatch(r"#!lua( flags=[a-z,-]+)?", lines[0])
    header = []
    for line in lines[1:]:
        if not line.startswith("--") or line.startswith("---"):
            break
        header.append(line)
    words = [line.split()[1] for line in header if len(line.split()) > 1]
    for word in ("KEYS", "ARGV", "Reply"):
        assert word in words, f"the header does not tell {word}"
    assert header[0].endswith(".") or header[1].endswith("."), "it says first what it does"


@pytest.mark.parametrize("file", SCRIPTS, ids=name_of)
def test_a_script_is_registered_so_that_connections_load_it(file: Path) -> None:
    # The modules that use them are imported above; what nobody asks for is dead.
    assert channels
    assert dedup
    assert time_machine
    assert topics
    assert all((archiving, entry, holding, nodes, pipelines, progress, restoring, signals))
    assert all((commits, looking, operating, operations, shard_store))
    assert all((answers, assignments, dead_letters, mail, members, mirror_claim, mirrored, pools))
    assert all((mirror, outbound, retry_set))
    package = ".".join(("waystation", *file.parent.parent.relative_to(PACKAGE).parts))
    assert (package, file.stem) in {(each.package, each.name) for each in registered_scripts()}


@pytest.mark.parametrize("file", SCRIPTS, ids=name_of)
def test_a_script_takes_time_from_the_include_alone(file: Path) -> None:
    assert not [line for line in code_of(file) if re.search(r"call\('TIME'", line)]
