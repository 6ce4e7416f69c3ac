"""Error replies: problem+json (RFC 9457), and the JSON of DSPS on its routes."""

from __future__ import annotations

from waystation import errors
from waystation.api.reply import CLOSE, JSON, PROBLEM, Header, Reply, encode

_TITLES = {
    400: "Bad request",
    401: "A key is needed",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    409: "Conflict",
    413: "Too large",
    415: "Unsupported media type",
    426: "Upgrade needed",
    422: "Cannot be accepted",
    429: "Too much at once",
    500: "Internal error",
    503: "Not now",
    507: "Full",
}
#: Seconds that a client should wait before it repeats a request after 503 or 507.
RETRY_AFTER_SECONDS = 1


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error; 500 for errors that must not reach a client."""
    return (error.status if isinstance(error, errors.WaystationError) else None) or 500


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    path: str,
    request_id: str,
    field: str = "",
    hint: str = "",
    members: dict[str, object] | None = None,
) -> Reply:
    """Return a problem reply. `members` are added to the members that every problem has."""
    content: dict[str, object] = {
        "type": "about:blank",
        "title": _TITLES.get(status, "Error"),
        "status": status,
        "detail": detail,
        "instance": path,
        "code": code,
        "request_id": request_id,
    }
    if hint:
        content["hint"] = hint
    if field:
        content["errors"] = [{"field": field, "detail": detail}]
    if status in (503, 507):
        content["retry_after_s"] = RETRY_AFTER_SECONDS
    if members:
        content |= members
    return Reply(status, encode(content) + b"\n", (PROBLEM, *_extra(status)))


def problem_for(error: Exception, *, path: str, request_id: str) -> Reply:
    """Return the problem reply for an error.

    The reply to an error with status 500 discloses nothing but the request id, under which the log
    has the details.
    """
    status = status_of(error)
    if status == 500 or not isinstance(error, errors.WaystationError):
        detail = "Something went wrong on our side; the log has it under this request id."
        return problem(500, "internal", detail, path=path, request_id=request_id)
    members = {name: getattr(error, name) for name in error.members}
    return problem(
        status,
        error.code,
        # The reason for a rejected token is empty unless the settings permit its disclosure.
        getattr(error, "reason", "") or str(error),
        path=path,
        request_id=request_id,
        field=getattr(error, "field", ""),
        hint=error.hint,
        members=members,
    )


def dsps_error(status: int, message: str, code: str = "", *, reason: str = "") -> Reply:
    """Return an error reply in the shape of DSPS."""
    content = {"error": message}
    if code:
        content["code"] = code
    if reason:
        content["reason"] = reason
    return Reply(status, encode(content) + b"\n", (JSON, *_extra(status)))


def dsps_error_for(error: Exception, *, verb: str) -> Reply:
    """Return the reply of a DSPS route for an error. A reply with status 500 has no body."""
    if isinstance(error, errors.UnauthenticatedError | errors.ForbiddenError):
        reason = error.reason if isinstance(error, errors.TokenRejectedError) else ""
        return dsps_error(403, errors.UNAUTHORIZED, errors.TokenRejectedError.code, reason=reason)
    status = status_of(error)
    if status == 500:
        return Reply(500)
    assert isinstance(error, errors.WaystationError)
    if isinstance(error, errors.MessageMalformedError):
        return dsps_error(status, str(error), error.code)
    if isinstance(error, errors.ChannelError):
        return dsps_error(status, f'{verb} failed on storage "default": {error.code}', error.code)
    return dsps_error(status, str(error), error.code)


def _extra(status: int) -> tuple[Header, ...]:
    if status in (503, 507):
        return ((b"retry-after", b"%d" % RETRY_AFTER_SECONDS),)
    if status == 401:
        return ((b"www-authenticate", b'Bearer realm="waystation"'),)
    if status == 408:
        return (CLOSE,)
    return ()
