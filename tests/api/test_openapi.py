"""The OpenAPI document tells the truth: in both directions, and under schemathesis."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import schemathesis.specs.openapi.checks as openapi_checks
from hypothesis import HealthCheck, Phase, given, settings

from tests.kit.background import background_station
from waystation.api.dispatcher import Dispatcher
from waystation.testing.station import Serving, quick_settings

ROOT = Path(__file__).resolve().parent.parent.parent
METHODS = ("get", "put", "post", "delete", "patch", "head", "options")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with background_station(quick_settings(str(tmp_path_factory.mktemp("openapi")))) as serving:
        yield serving


def documented(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
        if method in METHODS
    }


def test_every_route_is_documented_and_nothing_else_is(running: Serving) -> None:
    app = running.server.app
    assert isinstance(app, Dispatcher)
    routed = {(route.method, route.path) for route in app._table.routes}
    for route in app._wide.routes:  # type: ignore[attr-defined]
        path = route.path_format.replace(":str", "")
        if ".schema" not in path:
            routed |= {(method, path) for method in route.methods if method != "OPTIONS"}

    assert routed == documented(running.server.document)


def test_every_documented_operation_is_answered(running: Serving) -> None:
    for method, path in sorted(documented(running.server.document)):
        url = running.url + path.replace("{", "").replace("}", "").lower()
        request = urllib.request.Request(url, data=b"1", method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                status, text = reply.status, ""
        except urllib.error.HTTPError as error:
            with error:
                status, text = error.code, error.read().decode()
        assert status != 405, f"{method} {path}"
        assert "page not found" not in text, f"{method} {path}"
        assert '"detail":"Not Found"' not in text, f"{method} {path}"


def test_the_document_in_the_repository_is_the_one_that_is_served(running: Serving) -> None:
    kept = json.loads((ROOT / "docs" / "reference" / "openapi.json").read_text())
    with urllib.request.urlopen(running.url + "/openapi.json") as reply:
        served = json.load(reply)

    assert kept == served, "run `make docs`"


def test_generated_files_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/generate.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_schemathesis_finds_no_reply_that_the_document_does_not_tell_of(running: Serving) -> None:
    schema = schemathesis.openapi.from_dict(running.server.document)
    checks = [
        schemathesis.checks.not_a_server_error,
        openapi_checks.status_code_conformance,
        openapi_checks.content_type_conformance,
        openapi_checks.response_schema_conformance,
    ]
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        # There is no time machine here; its own tests move time.
        if operation.path != "/v1/time/advance":
            check_operation(operation, running.url, checks)
            tried += 1
    assert tried >= 15


def check_operation(operation: Any, url: str, checks: list[Any]) -> None:
    @settings(
        max_examples=25,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        case.call_and_validate(base_url=url, checks=checks)

    check()
