"""Configuration: sources with origins, rejected names and values, hidden secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from waystation.config import Config
from waystation.config_sources import LoadedConfig, load_config
from waystation.errors import SettingsError


def write_settings(folder: Path, text: str) -> Path:
    file = folder / "waystation.toml"
    file.write_text(text, encoding="utf-8")
    return file


def origins(loaded: LoadedConfig) -> dict[str, str]:
    return {name: origin for name, _, origin in loaded.rows()}


def values(loaded: LoadedConfig) -> dict[str, Any]:
    return {name: value for name, value, _ in loaded.rows()}


# -- Layers ----------------------------------------------------------------------------------


def test_load_config_without_sources_returns_defaults() -> None:
    loaded = load_config()
    assert loaded.config == Config()
    assert set(origins(loaded).values()) == {"default"}


def test_load_config_prefers_flags_then_environment_then_file(tmp_path: Path) -> None:
    file = write_settings(
        tmp_path,
        """
        data = "from-file"
        [http]
        port = 1001
        grace_seconds = 1.5
        host = "127.0.0.2"
        [log]
        level = "debug"
        """,
    )
    environment = {
        "PATH": "/bin",
        "WAYSTATION_HTTP_PORT": "1002",
        "WAYSTATION_HTTP_HOST": "127.0.0.3",
    }

    loaded = load_config(file=file, environment=environment, flags={"http.port": 1003})

    # http.port is in three sources, http.host in two.
    assert loaded.config.http.port == 1003
    assert loaded.config.http.host == "127.0.0.3"
    assert loaded.config.http.grace_seconds == 1.5
    assert loaded.config.http.body_bytes_max == 1_048_576
    assert loaded.config.data == "from-file"
    found = origins(loaded)
    assert found["http.port"] == "flag"
    assert found["http.host"] == "environment WAYSTATION_HTTP_HOST"
    assert found["http.grace_seconds"] == found["data"] == f"file {file}"
    assert found["http.body_bytes_max"] == "default"


def test_load_config_ignores_flag_that_is_none() -> None:
    loaded = load_config(environment={"WAYSTATION_DATA": "here"}, flags={"data": None})
    assert loaded.config.data == "here"


def test_load_config_reads_every_setting_from_every_source(tmp_path: Path) -> None:
    for name, value, _ in load_config().rows():
        variable = f"WAYSTATION_{name.upper().replace('.', '_')}"
        text = ",".join(value) if isinstance(value, list) else str(value).lower()
        text = msgspec.json.encode(value).decode() if isinstance(value, tuple) else text
        text = "[]" if name == "channels.rules" else text
        assert origins(load_config(environment={variable: text}))[name].endswith(variable)
        section, _, key = name.rpartition(".")
        line = f"{key} = {msgspec.json.encode(value).decode()}\n"
        file = write_settings(tmp_path, f"[{section}]\n{line}" if section else line)
        assert origins(load_config(file=file))[name] == f"file {file}"
        assert origins(load_config(flags={name: value}))[name] == "flag"


def test_setting_variables_are_unique() -> None:
    names = [name for name, _, _ in load_config().rows()]
    assert len({name.replace(".", "_") for name in names}) == len(names)


def test_environment_list_is_separated_by_commas() -> None:
    loaded = load_config(environment={"WAYSTATION_HTTP_CORS_ORIGINS": "https://a, https://b,"})
    assert loaded.config.http.cors_origins == ["https://a", "https://b"]


def test_environment_with_client_variables_is_accepted() -> None:
    environment = {"WAYSTATION_URL": "http://x", "WAYSTATION_KEY": "k", "WAYSTATION_CONFIG": "f"}
    assert load_config(environment=environment).config == Config()


def test_config_data_dir_is_absolute() -> None:
    assert Config(data="~/station").data_dir == Path.home() / "station"
    assert Config(data="station").data_dir == Path.cwd() / "station"


# -- Rules -----------------------------------------------------------------------------------

RULE = """
[[channels.rules]]
pattern = "chat-(?P<room>[0-9]+)"
expire_seconds = 60

[channels.rules.tokens]
algorithms = ["RS256"]
key_files = ["/keys/chat.pem"]
issuers = ["https://id.example"]
claims = { room = ["{{.channel.room}}"] }

[[channels.rules]]
pattern = "orders"

[[channels.rules.webhooks]]
name = "crm"
url = "https://user:hush@crm.example/hush?key=hush"
headers = { authorization = "Bearer hush" }
"""


def test_channel_rules_are_tables_in_file_and_json_in_environment(tmp_path: Path) -> None:
    by_file = load_config(file=write_settings(tmp_path, RULE)).config.channels.rules
    text = msgspec.json.encode(by_file).decode()
    by_variable = load_config(environment={"WAYSTATION_CHANNELS_RULES": text})

    chat, orders = by_file
    assert (chat.expire_seconds, orders.expire_seconds) == (60, None)
    assert chat.tokens is not None
    assert chat.tokens.claims == {"room": ("{{.channel.room}}",)}
    assert orders.webhooks[0].name == "crm"
    assert by_variable.config.channels.rules == by_file
    (tmp_path / "rules.json").write_text(text)
    variable = {"WAYSTATION_CHANNELS_RULES_FILE": str(tmp_path / "rules.json")}
    assert load_config(environment=variable).config.channels.rules == by_file


def test_config_rows_of_channel_rules_hide_secrets(tmp_path: Path) -> None:
    chat, orders = values(load_config(file=write_settings(tmp_path, RULE)))["channels.rules"]

    assert chat == {
        "pattern": "chat-(?P<room>[0-9]+)",
        "expire_seconds": 60,
        "tokens": {
            "algorithms": ("RS256",),
            "key_files": ("/keys/chat.pem",),
            "issuers": ("https://id.example",),
            "claims": {"room": ("{{.channel.room}}",)},
        },
    }
    assert orders["webhooks"] == [
        {"name": "crm", "url": "https://crm.example/…", "headers": {"authorization": "•••"}}
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pattern = 7", "rule 2 .*Expected `str`"),
        ("patern = 'x'", "rule 2 .*unknown field `patern`"),
        ("expire_seconds = 1", "rule 2 .*required field `pattern`"),
        ("pattern = ''", "rule 2 .*length >= 1"),
        ("pattern = 'x'\nexpire_seconds = 0", r"rule 2 .*> 0\.0 - at `\$\.expire_seconds`"),
        ("pattern = 'x'\n[channels.rules.tokens]\nissuers = []", "rule 2 .*length >= 1"),
        ("pattern = 'x'\n[channels.rules.tokens]\nalgorithms = ['RS256']", "`issuers`"),
        (
            "pattern = 'x'\n[channels.rules.tokens]\nissuers = ['a']\nalgorithms = ['none']",
            "Invalid enum value 'none'",
        ),
    ],
)
def test_error_of_invalid_channel_rule_names_number_of_rule(
    tmp_path: Path, text: str, told: str
) -> None:
    file = write_settings(
        tmp_path, f"[[channels.rules]]\npattern = 'good'\n[[channels.rules]]\n{text}"
    )
    with pytest.raises(SettingsError, match=f"(?s)channels.rules.*{told}") as caught:
        load_config(file=file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("text", ["", "chat-.*", "{", "7", "{}", '"x"', "[" * 100_000])
def test_channel_rules_in_environment_without_json_list_are_rejected(text: str) -> None:
    with pytest.raises(SettingsError, match="CHANNELS_RULES"):
        load_config(environment={"WAYSTATION_CHANNELS_RULES": text})


# -- Unknown names ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[http]\nprot = 80", "'http.prot'"),
        ("htpp = 80", "'htpp'"),
        ("[htpp]\nport = 80", "'htpp'"),
        ("[htpp]", "'htpp'"),
        ("http = 80", "'http'"),
        ("[http.port]\nnumber = 80", "http.port"),
        ("[store]\nurls_file = '/x'", "'store.urls_file'"),
    ],
)
def test_file_with_unknown_name_is_rejected(tmp_path: Path, text: str, name: str) -> None:
    file = write_settings(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load_config(file=file)
    assert name in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "variable", ["WAYSTATION_HTTP_PROT", "WAYSTATION_PORT", "WAYSTATION_STORE_URLS_FILE"]
)
def test_environment_with_unknown_variable_is_rejected(variable: str) -> None:
    with pytest.raises(SettingsError, match=f"{variable}, which is not a setting"):
        load_config(environment={variable: "1"})


@pytest.mark.parametrize(
    ("text", "meant"),
    [("[http]\nprot = 1", "http.port"), ("[htp]\nport = 1", "http"), ('dta = "x"', "data")],
)
def test_file_with_mistyped_name_gets_suggestion(tmp_path: Path, text: str, meant: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_config(file=write_settings(tmp_path, text))
    assert caught.value.hint == f"Did you mean {meant}?"


def test_flag_with_unknown_name_is_rejected() -> None:
    with pytest.raises(SettingsError, match=r"flag has 'http\.prot'"):
        load_config(flags={"http.prot": 1})


# -- Bad values ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[http]\nport = 70000", "http.port"),
        ("[http]\nport = true", "http.port"),
        ("[http]\ngrace_seconds = nan", "http.grace_seconds"),
        ("[http]\ngrace_seconds = 0", "http.grace_seconds"),
        ('[http]\ncors_origins = ["a", 1]', "http.cors_origins"),
        ('[store]\ndurability = "paper"', "store.durability"),
        ('[auth]\ninsecure = "perhaps"', "auth.insecure"),
        ("data = 5", "data"),
    ],
)
def test_file_with_invalid_value_is_rejected_with_setting_and_origin(
    tmp_path: Path, text: str, name: str
) -> None:
    file = write_settings(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load_config(file=file)
    assert f"Setting {name} (file {file}): " in str(caught.value)


def test_enumeration_with_unknown_value_lists_choices() -> None:
    with pytest.raises(SettingsError, match="Use memory or disk"):
        load_config(flags={"store.durability": "paper"})
    with pytest.raises(SettingsError) as caught:
        load_config(flags={"http.port": -1})
    assert caught.value.hint == ""


def test_load_config_with_invalid_environment_or_flag_raises_error_with_origin() -> None:
    with pytest.raises(SettingsError, match=r"http\.port \(environment WAYSTATION_HTTP_PORT\)"):
        load_config(environment={"WAYSTATION_HTTP_PORT": "many"})
    with pytest.raises(SettingsError, match=r"http\.port \(flag\)"):
        load_config(flags={"http.port": -1})


@pytest.mark.parametrize("text", ["[http", "port = ", "a = 1\na = 2", "\ud800"])
def test_file_that_is_not_toml_is_rejected(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(SettingsError, match=r"broken\.toml cannot be read"):
        load_config(file=file)


def test_file_that_does_not_exist_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.toml cannot be read"):
        load_config(file=tmp_path / "absent.toml")


# -- Secrets ---------------------------------------------------------------------------------


def test_secret_is_read_from_file_named_by_setting(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("redis://:hush@store\n")
    by_variable = load_config(environment={"WAYSTATION_STORE_URL_FILE": str(secret)})
    assert by_variable.config.store.url == "redis://:hush@store"
    assert origins(by_variable)["store.url"] == "environment WAYSTATION_STORE_URL_FILE"

    by_file = load_config(file=write_settings(tmp_path, f'[store]\nurl_file = "{secret}"'))
    assert by_file.config.store.url == "redis://:hush@store"


def test_secret_file_that_cannot_be_read_names_origin(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    with pytest.raises(SettingsError, match="environment WAYSTATION_STORE_URL_FILE names a file"):
        load_config(environment={"WAYSTATION_STORE_URL_FILE": absent})
    with pytest.raises(SettingsError, match=r"waystation\.toml names a file"):
        load_config(file=write_settings(tmp_path, f'[store]\nurl_file = "{absent}"'))


def test_setting_given_directly_and_by_file_is_rejected(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("redis://one")
    both = {"WAYSTATION_STORE_URL": "redis://two", "WAYSTATION_STORE_URL_FILE": str(secret)}
    with pytest.raises(SettingsError, match=r"store\.url twice"):
        load_config(environment=both)
    with pytest.raises(SettingsError, match=r"store\.url twice"):
        load_config(
            file=write_settings(tmp_path, f'[store]\nurl = "redis://two"\nurl_file = "{secret}"')
        )


def test_config_rows_hide_secrets() -> None:
    loaded = load_config(environment={"WAYSTATION_STORE_URL": "redis://:hush@store"})
    assert loaded.config.store.url == "redis://:hush@store"
    assert values(loaded)["store.url"] == "•••"
    assert "hush" not in str(list(loaded.rows()))
    # An empty value is shown, because whether a secret is set is not secret.
    assert values(load_config())["store.url"] == ""


def test_config_rows_hide_every_secret_setting() -> None:
    text = "postgresql://user:hush-hush-hush@db/x"
    names = (
        *("admin.bearer", "archive.url", "catalogue", "deliverer.status_api_key"),
        *("delivery.notice_url", "relay.status_api_key", "store.url"),
    )
    flags = dict.fromkeys(names, text) | {"admin.bearer": ["hush-hush-hush-hush"]}

    shown = values(load_config(flags=flags))

    assert {name for name, value in shown.items() if value == "•••"} == set(names)


def test_admin_bearers_are_lists_and_hidden(tmp_path: Path) -> None:
    first, second = "a-secret-of-16-letters", "another/secret+of_16=="
    (tmp_path / "bearers").write_text(f"{first}\n{second}\n")
    by_variable = load_config(environment={"WAYSTATION_ADMIN_BEARER": f"{first}, {second}"})
    by_file = load_config(
        file=write_settings(tmp_path, f'[admin]\nbearer_file = "{tmp_path / "bearers"}"')
    )

    for loaded in (by_variable, by_file):
        assert loaded.config.admin.bearer == [first, second]
        assert values(loaded)["admin.bearer"] == "•••"


@pytest.mark.parametrize("bearer", ["too-short", "sixteen letters ü", "with\u00e4umlaut-sixteen"])
def test_admin_bearer_that_is_short_or_not_ascii_is_rejected(bearer: str) -> None:
    with pytest.raises(SettingsError, match=r"admin\.bearer") as caught:
        load_config(flags={"admin.bearer": [bearer]})
    assert bearer not in str(caught.value)


def test_config_rows_are_sorted_by_name_and_have_settings_of_every_section() -> None:
    names = [name for name, _, _ in load_config().rows()]
    assert names == sorted(names)
    assert {"auth.insecure", "data", "http.port", "store.durability", "time_machine"} < set(names)
