"""Config: four layers with origins, nothing unknown accepted, secrets hidden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from waystation.config import SECRETS, Config
from waystation.config_sources import LoadedConfig, load_config
from waystation.errors import SettingsError


def written(folder: Path, text: str) -> Path:
    file = folder / "waystation.toml"
    file.write_text(text, encoding="utf-8")
    return file


def origins(loaded: LoadedConfig) -> dict[str, str]:
    return {name: origin for name, _, origin in loaded.rows()}


def values(loaded: LoadedConfig) -> dict[str, Any]:
    return {name: value for name, value, _ in loaded.rows()}


# -- Layers ----------------------------------------------------------------------------------


def test_without_anything_the_defaults_hold() -> None:
    loaded = load_config()
    assert loaded.settings == Config()
    assert set(origins(loaded).values()) == {"default"}


def test_each_layer_wins_over_the_ones_before_it(tmp_path: Path) -> None:
    file = written(
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

    # Then the same setting in three places has the value of the last
    assert loaded.settings.http.port == 1003
    assert loaded.settings.http.host == "127.0.0.3"
    assert loaded.settings.http.grace_seconds == 1.5
    assert loaded.settings.http.body_bytes_max == 1_048_576
    assert loaded.settings.data == "from-file"
    found = origins(loaded)
    assert found["http.port"] == "flag"
    assert found["http.host"] == "environment WAYSTATION_HTTP_HOST"
    assert found["http.grace_seconds"] == found["data"] == f"file {file}"
    assert found["http.body_bytes_max"] == "default"


def test_a_flag_that_was_not_given_changes_nothing() -> None:
    loaded = load_config(environment={"WAYSTATION_DATA": "here"}, flags={"data": None})
    assert loaded.settings.data == "here"


def test_every_setting_can_come_from_every_layer(tmp_path: Path) -> None:
    for name, value, _ in load_config().rows():
        variable = f"WAYSTATION_{name.upper().replace('.', '_')}"
        text = ",".join(value) if isinstance(value, list) else str(value).lower()
        text = msgspec.json.encode(value).decode() if isinstance(value, tuple) else text
        text = "[]" if name == "channels.rules" else text
        assert origins(load_config(environment={variable: text}))[name].endswith(variable)
        section, _, key = name.rpartition(".")
        line = f"{key} = {msgspec.json.encode(value).decode()}\n"
        file = written(tmp_path, f"[{section}]\n{line}" if section else line)
        assert origins(load_config(file=file))[name] == f"file {file}"
        assert origins(load_config(flags={name: value}))[name] == "flag"


def test_no_two_settings_share_a_variable() -> None:
    names = [name for name, _, _ in load_config().rows()]
    assert len({name.replace(".", "_") for name in names}) == len(names)


def test_a_list_in_the_environment_is_separated_by_commas() -> None:
    loaded = load_config(environment={"WAYSTATION_HTTP_CORS_ORIGINS": "https://a, https://b,"})
    assert loaded.settings.http.cors_origins == ["https://a", "https://b"]


def test_variables_of_clients_are_not_settings_of_a_server() -> None:
    environment = {"WAYSTATION_URL": "http://x", "WAYSTATION_KEY": "k", "WAYSTATION_CONFIG": "f"}
    assert load_config(environment=environment).settings == Config()


def test_the_data_directory_is_absolute() -> None:
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


def test_rules_are_tables_of_the_file_or_json_of_the_environment(tmp_path: Path) -> None:
    by_file = load_config(file=written(tmp_path, RULE)).settings.channels.rules
    text = msgspec.json.encode(by_file).decode()
    by_variable = load_config(environment={"WAYSTATION_CHANNELS_RULES": text})

    chat, orders = by_file
    assert (chat.expire_seconds, orders.expire_seconds) == (60, None)
    assert chat.tokens is not None
    assert chat.tokens.claims == {"room": ("{{.channel.room}}",)}
    assert orders.webhooks[0].name == "crm"
    assert by_variable.settings.channels.rules == by_file
    (tmp_path / "rules.json").write_text(text)
    variable = {"WAYSTATION_CHANNELS_RULES_FILE": str(tmp_path / "rules.json")}
    assert load_config(environment=variable).settings.channels.rules == by_file


def test_rules_are_shown_without_what_is_secret(tmp_path: Path) -> None:
    chat, orders = values(load_config(file=written(tmp_path, RULE)))["channels.rules"]

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
def test_a_bad_rule_is_told_by_its_number(tmp_path: Path, text: str, told: str) -> None:
    file = written(tmp_path, f"[[channels.rules]]\npattern = 'good'\n[[channels.rules]]\n{text}")
    with pytest.raises(SettingsError, match=f"(?s)channels.rules.*{told}") as caught:
        load_config(file=file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("text", ["", "chat-.*", "{", "7", "{}", '"x"', "[" * 100_000])
def test_rules_in_the_environment_that_are_no_list_are_told(text: str) -> None:
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
def test_an_unknown_name_in_the_file_is_rejected_by_name(
    tmp_path: Path, text: str, name: str
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load_config(file=file)
    assert name in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "variable", ["WAYSTATION_HTTP_PROT", "WAYSTATION_PORT", "WAYSTATION_STORE_URLS_FILE"]
)
def test_an_unknown_variable_is_rejected_by_name(variable: str) -> None:
    with pytest.raises(SettingsError, match=f"{variable}, which is no setting"):
        load_config(environment={variable: "1"})


@pytest.mark.parametrize(
    ("text", "meant"),
    [("[http]\nprot = 1", "http.port"), ("[htp]\nport = 1", "http"), ('dta = "x"', "data")],
)
def test_a_mistyped_name_is_told_what_was_meant(tmp_path: Path, text: str, meant: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_config(file=written(tmp_path, text))
    assert caught.value.hint == f"Did you mean {meant}?"


def test_an_unknown_flag_is_rejected_by_name() -> None:
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
def test_a_bad_value_in_the_file_names_the_setting_and_its_origin(
    tmp_path: Path, text: str, name: str
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load_config(file=file)
    assert f"Setting {name} (file {file}): " in str(caught.value)


def test_a_value_that_is_none_of_a_few_is_told_which_there_are() -> None:
    with pytest.raises(SettingsError, match="Use memory or disk"):
        load_config(flags={"store.durability": "paper"})
    with pytest.raises(SettingsError) as caught:
        load_config(flags={"http.port": -1})
    assert caught.value.hint == ""


def test_a_bad_value_of_each_other_layer_names_its_origin() -> None:
    with pytest.raises(SettingsError, match=r"http\.port \(environment WAYSTATION_HTTP_PORT\)"):
        load_config(environment={"WAYSTATION_HTTP_PORT": "many"})
    with pytest.raises(SettingsError, match=r"http\.port \(flag\)"):
        load_config(flags={"http.port": -1})


@pytest.mark.parametrize("text", ["[http", "port = ", "a = 1\na = 2", "\ud800"])
def test_a_file_that_is_not_toml_is_rejected_with_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(SettingsError, match=r"broken\.toml cannot be read"):
        load_config(file=file)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.toml cannot be read"):
        load_config(file=tmp_path / "absent.toml")


# -- Secrets ---------------------------------------------------------------------------------


def test_a_secret_can_come_from_a_file_of_its_own(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("redis://:hush@store\n")
    by_variable = load_config(environment={"WAYSTATION_STORE_URL_FILE": str(secret)})
    assert by_variable.settings.store.url == "redis://:hush@store"
    assert origins(by_variable)["store.url"] == "environment WAYSTATION_STORE_URL_FILE"

    by_file = load_config(file=written(tmp_path, f'[store]\nurl_file = "{secret}"'))
    assert by_file.settings.store.url == "redis://:hush@store"


def test_a_secret_file_that_cannot_be_read_names_who_named_it(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    with pytest.raises(SettingsError, match="environment WAYSTATION_STORE_URL_FILE names a file"):
        load_config(environment={"WAYSTATION_STORE_URL_FILE": absent})
    with pytest.raises(SettingsError, match=r"waystation\.toml names a file"):
        load_config(file=written(tmp_path, f'[store]\nurl_file = "{absent}"'))


def test_a_setting_given_as_itself_and_as_a_file_is_a_contradiction(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("redis://one")
    both = {"WAYSTATION_STORE_URL": "redis://two", "WAYSTATION_STORE_URL_FILE": str(secret)}
    with pytest.raises(SettingsError, match=r"store\.url twice"):
        load_config(environment=both)
    with pytest.raises(SettingsError, match=r"store\.url twice"):
        load_config(file=written(tmp_path, f'[store]\nurl = "redis://two"\nurl_file = "{secret}"'))


def test_secrets_are_hidden_where_settings_are_shown() -> None:
    loaded = load_config(environment={"WAYSTATION_STORE_URL": "redis://:hush@store"})
    assert loaded.settings.store.url == "redis://:hush@store"
    assert values(loaded)["store.url"] == "•••"
    assert "hush" not in str(list(loaded.rows()))
    # And an empty one is shown as empty: that it is not set is no secret
    assert values(load_config())["store.url"] == ""
    assert set(values(loaded)) >= SECRETS


def test_bearers_of_administrators_are_several_and_hidden(tmp_path: Path) -> None:
    first, second = "a-secret-of-16-letters", "another/secret+of_16=="
    (tmp_path / "bearers").write_text(f"{first}\n{second}\n")
    by_variable = load_config(environment={"WAYSTATION_ADMIN_BEARER": f"{first}, {second}"})
    by_file = load_config(
        file=written(tmp_path, f'[admin]\nbearer_file = "{tmp_path / "bearers"}"')
    )

    for loaded in (by_variable, by_file):
        assert loaded.settings.admin.bearer == [first, second]
        assert values(loaded)["admin.bearer"] == "•••"


@pytest.mark.parametrize("bearer", ["too-short", "sixteen letters ü", "with\u00e4umlaut-sixteen"])
def test_a_bearer_that_could_be_guessed_or_not_be_sent_is_refused(bearer: str) -> None:
    with pytest.raises(SettingsError, match=r"admin\.bearer") as caught:
        load_config(flags={"admin.bearer": [bearer]})
    assert bearer not in str(caught.value)


def test_rows_are_sorted_and_complete() -> None:
    names = [name for name, _, _ in load_config().rows()]
    assert names == sorted(names)
    assert {"auth.insecure", "data", "http.port", "store.durability", "time_machine"} < set(names)
