"""Every command as a user runs it: what it prints, what it exits with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import redis
from deltalake import DeltaTable

from tests.cli import conftest
from tests.cli.conftest import Run, clean_environment, running_station
from waystation.testing import Station, private_server


def test_help_lists_every_command(run: Run) -> None:
    done = run("--help")

    assert done.returncode == 0
    parts = ("channel", "topic", "tx", "pipeline", "webhooks", "archive")
    for name in ("dev", "serve", "demo", "config", "keys", "bench", *parts):
        assert name in done.stdout


def test_config_show_tells_value_and_origin_and_hides_secrets(run: Run, tmp_path: Path) -> None:
    (tmp_path / "waystation.toml").write_text('[http]\nport = 8123\n[log]\nlevel = "debug"\n')

    done = run("config", "show", "--json", WAYSTATION_STORE_URL="redis://:hunter2@db:6379")

    shown = json.loads(done.stdout)
    assert shown["http.port"] == {"value": 8123, "origin": "file waystation.toml"}
    assert shown["store.url"]["origin"] == "environment WAYSTATION_STORE_URL"
    assert shown["http.host"]["origin"] == "default"
    assert "hunter2" not in done.stdout + run("config", "show").stdout


RULES = """
[[channels.rules]]
pattern = "room-(?P<room>[0-9]+)"
expire_seconds = 60
[channels.rules.tokens]
algorithms = ["HS256"]
key_files = ["/nowhere"]
issuers = ["me"]
claims = { room = ["{{.channel.room}}"] }
[[channels.rules.webhooks]]
name = "crm"
url = "https://crm.example/hunter2"
headers = { x-key = "hunter2" }
"""


def test_config_shows_rules_one_a_line_without_their_secrets(run: Run, tmp_path: Path) -> None:
    (tmp_path / "waystation.toml").write_text(RULES)

    shown = json.loads(run("config", "show", "--json").stdout)["channels.rules"]["value"]
    table = run("config", "show").stdout

    assert shown[0]["tokens"]["issuers"] == ["me"]
    assert shown[0]["webhooks"][0]["url"] == "https://crm.example/…"
    assert "room-" in table
    assert "hunter2" not in table + json.dumps(shown)


@pytest.mark.slow
def test_config_channel_tells_what_the_rules_say_about_one_channel(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "waystation.toml").write_text(RULES)

    told = json.loads(run("config", "channel", "room-7", "--json").stdout)
    table, other = run("config", "channel", "room-7"), run("config", "channel", "hall")

    assert told["expire_seconds"] == 60
    assert told["tokens"][0]["claims"] == {"room": ["7"]}
    assert [each["name"] for each in told["webhooks"]] == ["crm"]
    assert "hunter2" not in json.dumps(told) + table.stdout
    assert other.returncode != 0
    assert "No channel rule allows the name 'hall'" in other.stderr


@pytest.mark.parametrize(
    ("environment", "file", "told"),
    [
        ({"WAYSTATION_HTTP_PROT": "1"}, "", "WAYSTATION_HTTP_PROT"),
        ({}, "[http]\nprot = 1\n", "http.prot"),
        ({"WAYSTATION_HTTP_PORT": "many"}, "", "http.port"),
        ({}, "[http\n", "cannot be read"),
        ({"WAYSTATION_CONFIG": "missing.toml"}, "", "missing.toml"),
    ],
)
def test_a_wrong_setting_is_named_and_exits_2(
    run: Run, tmp_path: Path, environment: dict[str, str], file: str, told: str
) -> None:
    if file:
        (tmp_path / "waystation.toml").write_text(file)

    done = run("config", "show", **environment)

    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_keys_are_created_listed_and_revoked(run: Run) -> None:
    created = json.loads(run("keys", "create", "--label", "shop", "--json").stdout)
    other = run("keys", "create", "--project", "acme", "--new-project", "--scope", "read")
    listed = json.loads(run("keys", "list", "--json").stdout)
    revoked = run("keys", "revoke", created["id"])
    after = json.loads(run("keys", "list", "--project", "default", "--json").stdout)

    assert created["key"].startswith(f"ws_{created['id']}_")
    assert other.returncode == 0
    assert [(key["project"], key["scope"]) for key in listed] == [
        ("default", "write"),
        ("acme", "read"),
    ]
    assert created["key"].rpartition("_")[2] not in json.dumps(listed)
    assert revoked.returncode == 0
    assert [key["state"] for key in after] == ["revoked"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("keys", "revoke", "nobody"), 3),
        (("keys", "create", "--project", "nowhere"), 3),
        (("keys", "create", "--project", "Bad Name"), 2),
        (("keys", "create", "--scope", "everything"), 2),
        (("keys", "create", "--project", "default", "--new-project"), 6),
        (("serve",), 2),
        (("serve", "--store", "redis://127.0.0.1:1", "--insecure"), 5),
        (("serve", "--durability", "stone", "--insecure"), 2),
        (("dev", "--time-machine", "--port", "99999"), 2),
        (("nonsense",), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_refusal_is_a_sentence_and_an_exit_code(
    run: Run, arguments: tuple[str, ...], code: int
) -> None:
    done = run(*arguments)

    assert done.returncode == code, done.stderr
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr


def test_what_no_person_reads_is_not_broken_into_lines(run: Run) -> None:
    table = run("config", "show", COLUMNS="40").stdout
    refused = run("channel", "seek", "orders", "me", "somewhere", COLUMNS="40").stderr

    networks = next(line for line in table.splitlines() if line.startswith("admin.networks"))
    assert '"10.0.0.0/8", ' in networks
    assert networks.endswith("default")
    assert len(refused.splitlines()) == 2


@pytest.mark.slow
def test_a_table_of_keys_tells_when_they_expire(run: Run) -> None:
    run("keys", "create", "--label", "short", "--days", "2")
    run("keys", "create", "--label", "long")

    first, second = run("keys", "list").stdout.splitlines()[1:]

    assert re.search(r"short  valid  \d{4}-\d\d-\d\d \d\d:\d\d$", first)
    assert re.search(r"long   valid  never$", second)
    assert run("keys", "list", "--project", "nix").stdout.startswith("Project nix has no keys")


def test_an_error_is_json_for_machines(run: Run) -> None:
    done = run("keys", "revoke", "nobody", "--json")

    told = json.loads(done.stderr)
    assert told["code"] == "not-found"
    assert "keys list" in told["hint"]


@pytest.mark.slow
def test_channel_commands_speak_to_a_station(run: Run, station: Station) -> None:
    url = ("--url", station.url)
    assert run("channel", "subscribe", "orders", "me", *url).returncode == 0
    published = run("channel", "publish", "orders", '{"n": 1.0}', "--id", "m-1", "--json", *url)
    run("channel", "publish", "orders", "-", *url, text='"from standard input"')
    fetched = json.loads(run("channel", "fetch", "orders", "me", "--json", *url).stdout)
    seen = run("channel", "fetch", "orders", "me", "--ack", *url)
    empty = run("channel", "fetch", "orders", "me", *url)

    assert json.loads(published.stdout) == {"channel": "orders", "id": "m-1"}
    assert [each["content"] for each in fetched["messages"]] == [{"n": 1.0}, "from standard input"]
    assert '{"n": 1.0}' in seen.stdout
    assert "Nothing unread" in empty.stdout
    assert run("channel", "ack", "orders", "me", fetched["handle"], *url).returncode == 0
    assert run("channel", "unsubscribe", "orders", "me", *url).returncode == 0
    assert run("channel", "fetch", "orders", "me", *url).returncode == 3
    assert run("channel", "publish", "orders", "{", *url).returncode == 2


@pytest.mark.slow
def test_serve_needs_a_key_and_dev_needs_none(run: Run, tmp_path: Path) -> None:
    key = json.loads(run("keys", "create", "--json").stdout)["key"]
    with running_station(tmp_path, "serve", "--port", "0") as served:
        url = ("--url", served["url"])
        without = run("channel", "subscribe", "orders", "me", *url)
        with_key = run("channel", "subscribe", "orders", "me", *url, WAYSTATION_KEY=key)
        ready = json.load(urllib.request.urlopen(served["url"] + "/readyz"))

        assert served["durability"] == "disk"
        assert served["keys"] == "required"
        assert (without.returncode, with_key.returncode) == (4, 0)
        assert ready["ready"] is True
    with running_station(tmp_path, "dev", "--port", "0") as dev:
        assert dev["keys"] == "not needed"
        assert run("channel", "subscribe", "orders", "me", "--url", dev["url"]).returncode == 0


def test_dev_refuses_to_listen_beyond_loopback(run: Run) -> None:
    done = run("dev", WAYSTATION_HTTP_HOST="0.0.0.0")

    assert done.returncode == 2
    assert "loopback" in done.stderr


@pytest.mark.slow
def test_dev_runs_the_data_pipeline_and_prints_how_to_query_it(tmp_path: Path) -> None:
    """No message arrives, so that Spark does not start."""
    with running_station(tmp_path, "dev", "--port", "0", history="") as dev:
        lake = tmp_path / ".waystation" / "lake"
        query = "waystation history sql 'select * from waystation.messages'"
        assert dev["history"] == f"lake in {lake}; query it: {query}"
        ready = json.load(urllib.request.urlopen(dev["url"] + "/readyz"))
        assert (ready["ready"], ready["notes"]) == (True, dev["notes"])
    with running_station(tmp_path, "dev", "--port", "0", "--data", "my data", history="") as dev:
        assert "--data 'my data'" in dev["history"]


@pytest.mark.slow
def test_dev_without_pipeline_prints_the_reason(tmp_path: Path) -> None:
    with running_station(tmp_path, "dev", "--port", "0") as dev:
        assert dev["history"] == "off: --no-history"
    (tmp_path / "waystation.toml").write_text("history.run = false\n")
    with running_station(tmp_path, "dev", "--port", "0", history="") as dev:
        assert dev["history"] == "off: history.run is false (file waystation.toml)"
    with running_station(tmp_path, "serve", "--insecure", "--port", "0", history="") as served:
        assert served["history"] == "off: history.run is false"


#: The command line where the package that follows does not exist.
_WITHOUT_PACKAGE = """
import sys
from waystation.history import packages
packages._NEEDED = ("no_such_package",)
from waystation.cli.main import main
sys.argv[0] = "waystation"
sys.exit(main())
"""


@pytest.mark.slow
def test_dev_without_spark_starts_unless_the_pipeline_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_package(*arguments: str) -> list[str]:
        return [sys.executable, "-c", _WITHOUT_PACKAGE, *arguments]

    monkeypatch.setattr(conftest, "command", without_package)
    with running_station(tmp_path, "dev", "--port", "0", history="") as dev:
        assert dev["history"] == (
            "off: History needs no_such_package. "
            "Install them with: pip install 'waystation[history]'"
        )
    for arguments in (("dev",), ("serve", "--insecure")):
        done = subprocess.run(
            without_package(*arguments, "--history", "--port", "0"),
            check=False,
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2
        assert "History needs no_such_package." in done.stderr


def test_a_taken_port_is_told(run: Run, station: Station, tmp_path: Path) -> None:
    done = run("dev", "--port", station.url.rpartition(":")[2], "--data", str(tmp_path / "other"))

    assert done.returncode == 2
    assert "--port" in done.stderr


@pytest.mark.slow
def test_time_can_be_moved_on_a_dev_station_only_if_asked_for(tmp_path: Path) -> None:
    def advance(url: str) -> tuple[int, dict[str, object]]:
        request = urllib.request.Request(
            url + "/v1/time/advance", data=b'{"seconds": 86400}', method="POST"
        )
        try:
            with urllib.request.urlopen(request) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    with running_station(tmp_path, "dev", "--port", "0", "--time-machine") as dev:
        status, moved = advance(dev["url"])
        assert (status, moved["shift_ms"]) == (200, 86_400_000)
    with running_station(tmp_path, "dev", "--port", "0") as dev:
        status, told = advance(dev["url"])
        assert (status, told["code"]) == (404, "not-found")


def test_a_command_of_the_client_loads_nothing_of_the_server() -> None:
    """People wait for it at every call: what a server needs takes three times as long to load."""
    code = """if True:
        import sys
        from waystation.cli.main import build_app
        from waystation import Waystation
        build_app("topic")
        print([each for each in ("waystation.node", "aiohttp", "redis") if each in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.timeout(580)
@pytest.mark.slow
def test_the_demo_holds_all_its_checks_and_never_touches_a_store_that_the_environment_names(
    run: Run, tmp_path: Path
) -> None:
    with private_server() as server:
        url = f"unix://{server.address.path}"
        done = run("demo", "--json", seconds_max=560, WAYSTATION_STORE_URL=url)
        with redis.Redis(unix_socket_path=server.address.path) as client:
            assert client.dbsize() == 0

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    checks = said["checks"]
    assert len(checks) >= 57
    assert all(check["holds"] for check in checks)
    held = {check["check"] for check in checks}
    assert {"orders that billing got", "payments delivered", "scans found twice"} <= held
    assert {"dead letters redriven", "the events of every order came in order"} <= held
    assert {"payments made twice", "waited for a switch: success", "broke: internal-error"} <= held
    assert {"asleep in the archive alone", "brought back by a switch", "webhooks delivered"} <= held
    # What history makes of it: 85 first attempts found the endpoint overloaded, 4 orders were
    # refused three times, and all 600 events were taken in the end
    assert "what the audit found lost, doubled or overtaken" in held
    told = {check["check"].partition(" and those")[0]: check["found"] for check in checks}
    assert told["requests to 127.0.0.1"] == [600 + 85 + 4 * 3, 85]
    assert told["requests to channel:default.board"] == [600, 0]
    assert said["kept"] == {
        "lake": str(tmp_path / "waystation-demo" / "data" / "lake"),
        "report": str(tmp_path / "waystation-demo" / "report.html"),
    }
    assert (tmp_path / "waystation-demo" / "report.html").read_text().startswith("<!doctype html>")
    messages = DeltaTable(f"{said['kept']['lake']}/messages").to_pyarrow_dataset()
    assert messages.count_rows() >= 12_600


def test_the_demo_replaces_nothing_that_no_demo_has_made(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("of somebody")

    done = run("demo", "--keep", "mine")

    assert done.returncode == 2
    assert "no demo has made it" in done.stderr
    assert (tmp_path / "mine" / "report.html").read_text() == "of somebody"
