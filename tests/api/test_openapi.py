"""The OpenAPI document tells all that the server answers, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from msgspec.structs import fields, replace
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.helpers.http import ask
from tests.helpers.server import background_station
from waystation.config import ChannelConfig, Config, HttpConfig
from waystation.testing.station import Serving
from waystation.types.message import JsonMessage, Receipt
from waystation.types.topic import MissingRange, StoredMessage, StoredMessagePage

COMMITTED = Path(__file__).resolve().parents[2] / "docs" / "reference" / "openapi.json"
CHECKED = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
#: The slow set takes more.
EXAMPLES = min(60, int(os.environ.get("EXAMPLES", "8")))
METHODS = {"get", "put", "post", "delete", "patch", "head", "options", "trace"}

Operation = tuple[str, str]


@pytest.fixture(scope="module")
def running(module_store_settings: Config) -> Iterator[Serving]:
    """A station whose polls do not wait, and streams end, since it is their form that counts."""
    station_settings = replace(
        module_store_settings,
        http=HttpConfig(port=0, poll_seconds_max=0.01, stream_seconds_max=0.01),
        channels=ChannelConfig(),
    )
    with background_station(station_settings) as serving:
        yield serving


@pytest.fixture(scope="module")
def document(running: Serving) -> dict[str, Any]:
    answer = ask(running.url, "GET", "/openapi.json")
    assert (answer.status, answer.header("content-type")) == (200, "application/json")
    return answer.json()  # type: ignore[no-any-return]


def documented(document: dict[str, Any]) -> set[Operation]:
    return {
        (method.upper(), path)
        for path, item in document["paths"].items()
        for method in item
        if method in METHODS
    }


def routed(running: Serving) -> set[Operation]:
    """Every method of every route of the dispatcher and of Litestar behind it."""
    dispatcher = running.server.app
    ours = {(route.method, route.path) for route in dispatcher._table.routes}
    wide: Any = dispatcher._wide
    theirs = {
        (method, route.path_format)
        for route in wide.routes
        for method in route.methods
        if method != "OPTIONS"  # Litestar's own, which only lists the others
    }
    assert not ours & theirs
    return ours | theirs


def test_routes_and_document_are_the_same_in_both_directions(
    running: Serving, document: dict[str, Any]
) -> None:
    assert documented(document) == routed(running)
    assert len(documented(document)) > 15


def test_every_documented_operation_is_answered(running: Serving, document: dict[str, Any]) -> None:
    for method, path in sorted(documented(document)):
        target = path.replace("{", "").replace("}", "").lower()
        answer = ask(running.url, method, target, b"{}" if method in ("PUT", "POST") else None)
        unknown_route = (
            answer.body == b"404 page not found" or b'"detail":"Not Found"' in answer.body
        )
        assert not unknown_route, f"{method} {path} has no route"
        assert answer.status not in (405, 500, 501), f"{method} {path}"
        assert str(answer.status) in document["paths"][path][method.lower()]["responses"]


def test_every_operation_tells_what_it_is_for_and_has_an_id_of_its_own(
    document: dict[str, Any],
) -> None:
    ids = []
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert operation["summary"], f"{method} {path}"
            assert operation["tags"], f"{method} {path}"
            ids.append(operation["operationId"])
            in_path = {
                each["name"] for each in operation.get("parameters", []) if each["in"] == "path"
            }
            assert in_path == {part[1:-1] for part in path.split("/") if part.startswith("{")}
    assert len(ids) == len(set(ids))


def test_the_committed_document_is_the_served_one(document: dict[str, Any]) -> None:
    assert json.loads(COMMITTED.read_text()) == document, "out of date: run `make docs`"


def test_document_of_topic_messages_has_fields_of_public_structs(document: dict[str, Any]) -> None:
    routes = document["paths"]["/v1/topics/{topic}/messages"]

    def reply(method: str) -> dict[str, Any]:
        content = routes[method]["responses"]["200"]["content"]
        return content["application/json"]["schema"]  # type: ignore[no-any-return]

    page, produced = reply("get"), reply("post")
    found, missing = page["properties"]["messages"], page["properties"]["damaged"]
    for schema, struct in (
        (page, StoredMessagePage),
        (found["items"], StoredMessage),
        (found["items"]["properties"]["message"], JsonMessage),
        (missing["items"], MissingRange),
        (produced["anyOf"][0], Receipt),
    ):
        assert set(schema["properties"]) == {field.encode_name for field in fields(struct)}


@pytest.mark.slow
def test_generated_files_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/generate.py", "--check"],
        cwd=COMMITTED.parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_reference_page_tells_every_operation(
    running: Serving, document: dict[str, Any]
) -> None:
    answer = ask(running.url, "GET", "/reference")
    page = answer.body.decode()
    assert (answer.status, answer.header("content-type")) == (200, "text/html; charset=utf-8")
    for method, path in documented(document):
        assert f">{method}</span><span class=path>{path}</span>" in page
    assert "<script" not in page
    assert "default-src 'none'" in (answer.header("content-security-policy") or "")
    assert ask(running.url, "GET", "/").body == answer.body


# -- schemathesis ----------------------------------------------------------------------------

SCHEMA = schemathesis.openapi.from_path(COMMITTED)
OPERATIONS = {each.label: each for each in (found.ok() for found in SCHEMA.get_all_operations())}


def has_input(label: str) -> bool:
    """Whether a request of this operation can break a rule at all."""
    operation = OPERATIONS[label].definition.raw
    return bool(operation.get("parameters") or "requestBody" in operation)


#: Headers of the connection: a request that breaks their rules is none, and reaches no route.
FRAMING = {
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}


@pytest.mark.parametrize(
    ("label", "mode"),
    [
        *((label, GenerationMode.POSITIVE) for label in sorted(OPERATIONS)),
        *((label, GenerationMode.NEGATIVE) for label in sorted(OPERATIONS) if has_input(label)),
    ],
)
def test_schemathesis_finds_no_reply_that_the_document_does_not_tell_of(
    running: Serving, label: str, mode: GenerationMode
) -> None:
    """Requests within the document's rules, and requests that break one of them."""

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode))
    def check(case: Case) -> None:
        for name in list(case.headers or ()):
            if name.lower() in FRAMING:
                del case.headers[name]
        case.call_and_validate(base_url=running.url, checks=CHECKED)

    check()
