"""The route by which a step is called back: open to whoever has its URL, which is the key."""

from __future__ import annotations

from waystation.api.reply import Reply, json_reply
from waystation.api.request import Request
from waystation.api.routes import Parameter, Route
from waystation.transactions.callbacks import PATH, Callbacks

_JSON: dict[str, object] = {"application/json": {"schema": {}}}
_USED: dict[str, object] = {
    "type": "object",
    "required": ["transaction", "place"],
    "properties": {"transaction": {"type": "string"}, "place": {"type": "string"}},
}
_PROBLEM: dict[str, object] = {"$ref": "#/components/schemas/Problem"}
_ID: dict[str, object] = {"type": "string", "pattern": "^tx-[0-9a-f]{40}$"}
_PLACE: dict[str, object] = {"type": "string", "pattern": "^[0-9]+~?([.][0-9]+~?)*$"}
_TOKEN: dict[str, object] = {"type": "string", "pattern": "^[0-9a-f]{32}$"}


class CallbackRoutes:
    """Handler of `/v1/callbacks`."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks

    async def use(self, request: Request) -> Reply:
        """POST /v1/callbacks/{id}/{place}/{token}"""
        transaction_id, place, token = request.params
        await self._callbacks.use(transaction_id, place, token, await request.body())
        return json_reply({"transaction": transaction_id, "place": place})

    def routes(self) -> list[Route]:
        """The one row of the route table."""
        problem = "application/problem+json"
        return [
            Route(
                method="POST",
                path=PATH + "/{id}/{place}/{token}",
                handler=self.use,
                scope=None,
                manner="own",
                tag="transactions",
                summary="Answer a step that has asked",
                description="The URL is that of the header `waystation-callback`. It is used once: "
                "the body, any JSON, becomes the output of the step.",
                parameters=(
                    Parameter(name="id", place="path", description="Transaction.", schema=_ID),
                    Parameter(name="place", place="path", description="Its step.", schema=_PLACE),
                    Parameter(name="token", place="path", description="Proof.", schema=_TOKEN),
                ),
                request_body={"description": "Any JSON.", "content": _JSON},
                responses={
                    200: ("The step has it.", "application/json", _USED),
                    404: ("Nobody was told this URL.", problem, _PROBLEM),
                    409: ("It was used, or the step has ended.", problem, _PROBLEM),
                    413: ("The body is over the limit.", problem, _PROBLEM),
                    422: ("The body is no JSON.", problem, _PROBLEM),
                },
            )
        ]
