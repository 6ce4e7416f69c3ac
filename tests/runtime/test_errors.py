"""Error classes: stable codes, statuses and exit codes, and their transport over HTTP."""

from __future__ import annotations

import inspect
from pathlib import Path

import msgspec
import pytest

from waystation import errors
from waystation.api.problems import problem_for, status_of
from waystation.client.messages import Answer, error_for, error_from
from waystation.errors import ExitCode, WaystationError, class_for
from waystation.types.common import Problem

CLASSES = [
    each
    for _, each in inspect.getmembers(errors, inspect.isclass)
    if issubclass(each, WaystationError)
]
GOLDEN = Path(__file__).with_name("errors.txt")


def test_error_codes_statuses_and_exit_codes_equal_the_golden_file() -> None:
    rows = [f"{each.code} {each.status} {each.exit_code.value}" for each in CLASSES]

    assert sorted(rows) == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_problem_has_all_members_of_error_classes() -> None:
    members = {name for each in CLASSES for name in each.members}

    assert members <= set(Problem.__struct_fields__)


def test_error_codes_are_unique() -> None:
    codes = [each.code for each in CLASSES]

    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_error_class_has_code_and_summary(kind: type[WaystationError]) -> None:
    assert "code" in vars(kind), "each class has a code that differs from its parent's"
    assert kind.summary().endswith(".")
    if kind.remedy:
        assert kind.remedy.endswith(".")


def test_error_text_is_message_and_hint() -> None:
    error = WaystationError("The disk is full.", hint="Delete files.")

    assert str(error) == "The disk is full. Delete files."
    assert (error.message, error.hint) == ("The disk is full.", "Delete files.")
    assert str(WaystationError()) == "internal"
    assert errors.StoreReplyError("ERR no").reply == "ERR no"


def test_error_without_hint_has_the_remedy_of_its_class() -> None:
    error = errors.TopicBlockedError("Topic 'orders' is blocked.")

    assert error.hint == errors.TopicBlockedError.remedy
    assert errors.TopicBlockedError("", hint="Wait.").hint == "Wait."


def test_error_class_without_status_is_500_and_discloses_nothing() -> None:
    error = errors.NoJavaError("/home/secret")

    assert status_of(error) == 500
    assert b"secret" not in problem_for(error, path="/", request_id="r").body
    assert status_of(ValueError("secret")) == 500


@pytest.mark.parametrize(
    ("error", "members"),
    [
        (errors.OffsetOutOfRangeError("Offset 7.", first=10, end=20), {"first": 10, "end": 20}),
        (
            errors.SchemaMismatchError("No.", field="data", path="/a", position=3),
            {"field": "data", "path": "/a", "position": 3},
        ),
        (errors.RateLimitedError("Limit.", retry_after_s=4), {"retry_after_s": 4}),
        (errors.DuplicateTransactionError(existing_id="tx-1"), {"existing_id": "tx-1"}),
        (errors.NotSleepingError(state="running"), {"state": "running"}),
        (
            errors.IllegalTransitionError(from_state="done", to_state="running"),
            {"from_state": "done", "to_state": "running"},
        ),
        (errors.LogFullError("Full."), {"policy": "refuse"}),
        (errors.StoreFullError("Full.", hint="Add memory."), {"policy": "noeviction"}),
        (errors.StoreDamagedError(key="c.{x}.clock"), {"key": "c.{x}.clock"}),
        (errors.ForbiddenError("No."), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_sent_as_problem_is_rebuilt_with_members_and_hint(
    error: WaystationError, members: dict[str, object]
) -> None:
    reply = problem_for(error, path="/v1/topics", request_id="r")

    rebuilt = error_for(Answer(reply.status, reply.body))

    assert type(rebuilt) is type(error)
    assert (rebuilt.message, rebuilt.hint) == (error.message, error.hint)
    assert str(rebuilt) == str(error)
    assert {name: getattr(rebuilt, name) for name in members} == members


def test_error_from_dsps_text_that_ends_with_the_code_uses_summary_and_remedy() -> None:
    kind = errors.SubscriberNotFoundError
    text = f'FetchMessages failed on storage "default": {kind.code}'

    rebuilt = error_from(Problem(code=kind.code, error=text), 404)

    assert type(rebuilt) is kind
    assert (rebuilt.message, rebuilt.hint) == (kind.summary(), kind.remedy)


def test_error_from_dsps_text_with_details_keeps_the_text() -> None:
    kind = errors.MessageMalformedError

    rebuilt = error_from(Problem(code=kind.code, error="Request body is not JSON"), 400)

    assert type(rebuilt) is kind
    assert rebuilt.message == "Request body is not JSON"


@pytest.mark.parametrize(
    ("status", "kind", "exit_code"),
    [
        (400, errors.InvalidInputError, ExitCode.USAGE),
        (401, errors.UnauthenticatedError, ExitCode.REFUSED),
        (403, errors.UnauthenticatedError, ExitCode.REFUSED),
        (404, errors.NotFoundError, ExitCode.NOT_FOUND),
        (502, errors.StationUnreachableError, ExitCode.UNAVAILABLE),
    ],
)
def test_class_for_unknown_code_follows_the_status(
    status: int, kind: type[WaystationError], exit_code: ExitCode
) -> None:
    assert class_for("proxy.said-no", status) is kind
    assert kind.exit_code is exit_code


def test_error_for_reply_without_json_names_the_status() -> None:
    assert error_for(Answer(502, b"<html>")).message == "The server answered 502."
    assert error_for(Answer(400, msgspec.json.encode({"code": "new.code"}))).code == "new.code"
