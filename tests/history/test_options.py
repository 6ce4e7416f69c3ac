"""Options of the sources: unknown names and secrets are refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from waystation.config import Config
from waystation.errors import SourceOptionError
from waystation.history.offsets import TASK_ROWS
from waystation.history.sources.options import Location, TopicSourceOptions
from waystation.history.store_access import store_access
from waystation.store.embedded.server import EmbeddedServer


def test_topic_source_options_with_a_topic_have_defaults() -> None:
    options = TopicSourceOptions.parse({"topic": "orders"})
    assert (options.topics, options.project, options.on_gap) == (("orders",), "default", "fail")
    assert (options.partition_rows, options.rows_max) == (TASK_ROWS, None)
    assert not options.from_latest
    assert options.tasks_max >= 4


def test_topic_source_options_contain_each_given_value() -> None:
    options = TopicSourceOptions.parse(
        {
            "topic": "a, b",
            "project": "shop",
            "store": "redis://10.0.0.1:6380/2",
            "on_gap": "count",
            "from": "latest",
            "rows_max": "10",
            "consumer": "files",
            "partition_rows": "20",
            "partitions_max": "3",
        }
    )
    assert (options.topics, options.project) == (("a", "b"), "shop")
    assert options.location.resolve({}) == "redis://10.0.0.1:6380/2"
    assert (options.on_gap, options.from_latest, options.rows_max) == ("count", True, 10)
    assert (options.partition_rows, options.tasks_max, options.consumer) == (20, 3, "files")
    assert TopicSourceOptions.parse({"topic": "*"}).topics == ()
    assert TopicSourceOptions.parse({"table": "deliveries"}).table == "deliveries"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"topics": "orders"}, "topics"),
        ({"topic": "orders", "path": "x"}, "path"),
        ({}, "topic"),
        ({"topic": " , "}, "topic"),
        ({"topic": "no.name"}, "topic"),
        ({"topic": "a,*"}, "topic"),
        ({"topic": "a", "project": "{x}"}, "project"),
        ({"topic": "a", "on_gap": "ignore"}, "on_gap"),
        ({"topic": "a", "from": "2026-01-01"}, "from"),
        ({"topic": "a", "rows_max": "0"}, "rows_max"),
        ({"topic": "a", "rows_max": "-5"}, "rows_max"),
        ({"topic": "a", "partition_rows": "many"}, "partition_rows"),
        ({"topic": "a", "partitions_max": "²"}, "partitions_max"),
        ({"topic": "a", "consumer": "no.name"}, "consumer"),
        ({"table": "steps", "consumer": "a"}, "consumer"),
        ({"topic": "a", "pushdown": "false"}, "pushdown"),
        ({"table": "messages"}, "table"),
        ({"table": "steps", "topic": "a"}, "topic"),
        ({"table": "steps", "project": "shop"}, "project"),
        ({"topic": "a", "store": "http://x"}, "store"),
        ({"topic": "a", "store": "redis://x", "store_file": "/x"}, "store"),
        ({"topic": "a", "store_file": "relative"}, "store_file"),
    ],
)
def test_invalid_option_is_refused_by_name(given: dict[str, str], field: str) -> None:
    with pytest.raises(SourceOptionError) as refusal:
        TopicSourceOptions.parse(given)
    assert refusal.value.field == field
    assert refusal.value.code == "history.option-invalid"


@pytest.mark.parametrize(
    "url", ["redis://:hunter2@x", "rediss://me:hunter2@x:1/2", "redis://x?password=hunter2"]
)
def test_store_option_with_password_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(SourceOptionError) as refusal:
        TopicSourceOptions.parse({"topic": "a", "store": url})
    assert "hunter2" not in str(refusal.value)
    assert "store_file" in str(refusal.value)


def test_location_resolves_option_before_file_before_environment(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("redis://:secret@a\n")
    other = tmp_path / "other"
    other.write_text("redis://:secret@b")
    environment = {"WAYSTATION_STORE_URL_FILE": str(other), "WAYSTATION_STORE_URL": "redis://c"}

    assert Location("redis://o", "").resolve(environment) == "redis://o"
    assert Location("", str(file)).resolve(environment) == "redis://:secret@a"
    assert Location().resolve(environment) == "redis://:secret@b"
    assert Location().resolve({"WAYSTATION_STORE_URL": "redis://c"}) == "redis://c"
    with pytest.raises(SourceOptionError, match="No option names the store"):
        Location().resolve({})
    with pytest.raises(SourceOptionError, match="cannot be read"):
        Location("", str(tmp_path / "none")).resolve(environment)


@pytest.mark.parametrize("content", [b"", b" \n", b"redis://:\xff@a"])
def test_location_with_a_file_without_url_is_refused_by_name(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "url"
    file.write_bytes(content)
    named = {"WAYSTATION_STORE_URL_FILE": str(file)}
    for location, environment in ((Location("", str(file)), {}), (Location(), named)):
        with pytest.raises(SourceOptionError, match="url does not contain the URL of the store"):
            location.resolve(environment)


def test_store_access_to_another_store_leaves_the_file_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WAYSTATION_STORE_URL_FILE", raising=False)
    urls = ["redis://:hunter2@a:6379", "redis://:hunter2@b:6379"]
    first, second = (
        msgspec.convert({"data": str(tmp_path), "store": {"url": url}}, Config) for url in urls
    )
    with store_access(first) as server, store_access(second) as audit:
        assert [each.resolve({}) for each in (server, audit)] == urls
        assert Path(server.file).stat().st_mode & 0o777 == 0o600
        # The second process of a store replaces its file by an equal one.
        with store_access(first) as again:
            assert again == server
    assert len(list((tmp_path / "history").iterdir())) == 2


def test_location_without_option_resolves_to_embedded_store_of_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"WAYSTATION_DATA": str(tmp_path / ".waystation")}
    with EmbeddedServer(tmp_path / ".waystation" / "store") as server:
        expected = f"unix://{server.address.path}"
        assert Location().resolve({}) == expected
        assert Location().resolve(environment) == expected
        assert Location().resolve({"WAYSTATION_STORE_URL": "redis://c"}) == "redis://c"
        with pytest.raises(SourceOptionError, match="No option names the store"):
            Location().resolve({"WAYSTATION_DATA": str(tmp_path / "other")})
    assert not (tmp_path / "other").exists()
