"""Commands that must not do harm: private data, stops while starting, settings that are obeyed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Run, clean_environment, command, running_station
from waystation import errors
from waystation.client.messages import Answer, decode_batch, raise_for
from waystation.testing import private_server


@pytest.mark.slow
def test_what_lies_in_the_data_directory_is_its_owners_alone(tmp_path: Path) -> None:
    with running_station(tmp_path, "dev", "--port", "0", "--data", "deep/data"):
        data = tmp_path / "deep" / "data"
        for folder in (data, data / "store"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for file in (data / "store" / "appendonlydir").iterdir():
            assert not file.stat().st_mode & 0o077, file


@pytest.mark.slow
def test_station_in_a_readable_data_directory_creates_private_files(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    with running_station(tmp_path, "dev", "--port", "0", "--data", "data"):
        files = list(data.rglob("*"))
        assert {"catalogue.db-wal", "archive.db-wal", "server.log", "keeper.log"} <= {
            file.name for file in files
        }
        assert [file for file in files if file.stat().st_mode & 0o077] == []


def test_a_stop_is_heard_while_the_store_is_not_there_yet(tmp_path: Path) -> None:
    store = tmp_path / "data" / "store"
    store.mkdir(parents=True)
    with open(store / "users.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            command("serve", "--insecure", "--port", "0", "--data", str(tmp_path / "data")),
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        # The catalogue is opened just before the store.
        begun = time.monotonic()
        while not (tmp_path / "data" / "catalogue.db").exists():
            assert time.monotonic() - begun < 30
            time.sleep(0.05)
        time.sleep(0.5)
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)

    assert process.returncode == 0
    assert time.monotonic() - begun < 5


def test_dev_obeys_the_settings_and_has_only_other_defaults(tmp_path: Path, run: Run) -> None:
    (tmp_path / "waystation.toml").write_text('[store]\ndurability = "disk"\n')
    with running_station(tmp_path, "dev", "--port", "0") as dev:
        assert dev["durability"] == "disk"
    refused = run("dev", "--port", "0", WAYSTATION_STORE_URL="redis://127.0.0.1:1")

    assert refused.returncode == 2
    assert "store.url" in refused.stderr


@pytest.mark.parametrize("days", ["nan", "inf", "1e20", "-1"])
def test_an_odd_expiry_is_a_sentence(run: Run, days: str) -> None:
    done = run("keys", "create", "--days", days)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_label_cannot_speak_to_the_terminal(run: Run) -> None:
    assert run("keys", "create", "--label", "\x1b[31mred").returncode == 2


def test_serve_does_not_start_when_the_only_key_has_expired(run: Run) -> None:
    assert run("keys", "create", "--days", "0.00000001").returncode == 0
    time.sleep(0.01)

    done = run("serve", "--port", "0")

    assert done.returncode == 2
    assert "keys create" in done.stderr


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_client_never_takes_a_breakdown_for_its_own_mistake(status: int) -> None:
    with pytest.raises(errors.StationUnreachableError):
        raise_for(Answer(status, b"<html>bad gateway</html>"))


def test_an_error_of_a_client_has_all_its_fields_and_garbage_is_no_batch() -> None:
    with pytest.raises(errors.InvalidInputError) as raised:
        raise_for(Answer(400, b'{"error": "no", "code": "input.invalid"}'))
    assert raised.value.field == ""
    with pytest.raises(errors.StationUnreachableError):
        decode_batch(Answer(200, b"<html>login</html>"))


def test_a_store_whose_socket_was_deleted_is_reachable_again() -> None:
    with private_server() as server:
        # Looked up once: while it starts anew, nobody can say where it is.
        socket = server.address.path
        os.unlink(socket)
        until = time.monotonic() + 20
        while not os.path.exists(socket) and time.monotonic() < until:
            time.sleep(0.05)

        assert os.path.exists(socket)


def test_the_socket_stays_where_it_was_whatever_the_environment_of_the_next_starter() -> None:
    with private_server() as server:
        first = server.address.path
        kept = (server.folder / "socket").read_text()

    assert kept == first


def test_errors_are_json_also_when_nothing_starts(run: Run) -> None:
    told = json.loads(run("serve", "--json").stderr)

    assert told["code"] == "settings.invalid"
