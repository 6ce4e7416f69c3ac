"""The one place that turns errors into HTTP: RFC 9457, or DSPS's shape on its routes."""

from __future__ import annotations

from waystation import errors
from waystation.api.reply import CLOSE, JSON, PROBLEM, Header, Reply, encode

#: The first class that fits decides.
_STATUS: tuple[tuple[type[errors.WaystationError], int], ...] = (
    (errors.TooLargeError, 413),
    (errors.GroupRequiredError, 422),
    (errors.SchemaMismatchError, 422),
    (errors.UnsupportedMediaTypeError, 415),
    (errors.RateLimitedError, 429),
    (errors.TopicBlockedError, 422),
    (errors.CallbackInvalidError, 422),
    (errors.NotATypeError, 422),
    (errors.ReplyInvalidError, 422),
    (errors.InvalidInputError, 400),
    (errors.TokenRejectedError, 403),
    (errors.UnauthenticatedError, 401),
    (errors.ForbiddenError, 403),
    (errors.SubscriberNotFoundError, 404),
    (errors.NotFoundError, 404),
    (errors.ConflictError, 409),
    (errors.ChannelFullError, 507),
    (errors.LogFullError, 507),
    (errors.LogNotFoundError, 404),
    (errors.LogSealedError, 409),
    (errors.OffsetOutOfRangeError, 400),
    (errors.ChannelError, 400),
    (errors.BusyError, 503),
    (errors.ArchiveUnavailableError, 503),
    (errors.CatalogueError, 503),
    (errors.StoreFullError, 507),
    (errors.StoreUnavailableError, 503),
    (errors.OutcomeUnknownError, 503),
)
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
#: What an error knows beyond its text, and a program may want; if it has it, it is told.
_MEMBERS = (
    *("first", "end", "path", "policy", "position"),
    *("existing_id", "from_state", "state", "to_state"),
)
#: What a client that was shed should wait before it tries again.
RETRY_AFTER_SECONDS = 1


def status_of(error: Exception) -> int:
    """The HTTP status of an error; 500 for what we did not foresee."""
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return 500


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    path: str,
    request_id: str,
    field: str = "",
    members: dict[str, object] | None = None,
) -> Reply:
    """An RFC 9457 reply; `members` are those that this kind of problem has beyond the usual."""
    content: dict[str, object] = {
        "type": "about:blank",
        "title": _TITLES.get(status, "Error"),
        "status": status,
        "detail": detail,
        "instance": path,
        "code": code,
        "request_id": request_id,
    }
    if field:
        content["errors"] = [{"field": field, "detail": detail}]
    if status in (503, 507):
        content["retry_after_s"] = RETRY_AFTER_SECONDS
    if members:
        content |= members
    return Reply(status, encode(content) + b"\n", (PROBLEM, *_extra(status)))


def problem_for(error: Exception, *, path: str, request_id: str) -> Reply:
    """An RFC 9457 reply for an error. What we did not foresee tells nothing about itself."""
    status = status_of(error)
    if status == 500 or not isinstance(error, errors.WaystationError):
        detail = "Something went wrong on our side; the log has it under this request id."
        return problem(500, "internal", detail, path=path, request_id=request_id)
    members = {name: getattr(error, name) for name in _MEMBERS if hasattr(error, name)}
    if isinstance(error, errors.RateLimitedError):
        members["retry_after_s"] = error.retry_after_seconds
    return problem(
        status,
        error.code,
        # Of a token that was refused, why; it is empty unless the settings let it be told.
        getattr(error, "reason", "") or str(error),
        path=path,
        request_id=request_id,
        field=getattr(error, "field", ""),
        members=members,
    )


def dsps_error(status: int, message: str, code: str = "", *, reason: str = "") -> Reply:
    """An error in the shape of DSPS."""
    content = {"error": message}
    if code:
        content["code"] = code
    if reason:
        content["reason"] = reason
    return Reply(status, encode(content) + b"\n", (JSON, *_extra(status)))


def dsps_error_for(error: Exception, *, verb: str) -> Reply:
    """The reply of a DSPS route for an error; a 500 has no body there."""
    if isinstance(error, errors.UnauthenticatedError | errors.ForbiddenError):
        reason = error.reason if isinstance(error, errors.TokenRejectedError) else ""
        return dsps_error(403, "Unauthorized", errors.TokenRejectedError.code, reason=reason)
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
