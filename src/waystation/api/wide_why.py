"""`/v1/why/{id}`: why something is where it is."""

from __future__ import annotations

from typing import Any

from litestar import Controller, Request, get
from litestar.datastructures import State
from litestar.params import FromPath

from waystation.access import Access, Scope
from waystation.transactions.why import Reason, Why


class WhyController(Controller):
    """Reasons, for what belongs to the caller's own project."""

    path = "/why"
    tags = ("transactions",)

    @get("/{id:str}", opt={"scope": Scope.READ}, summary="Explain a transaction")
    async def explain(
        self,
        request: Request[Any, Any, Any],
        state: State,
        id: FromPath[str],  # noqa: A002 (so it is called in the path)
    ) -> Reason:
        """Tells what it waits for, or has ended with: a stable code and a sentence.

        What this project does not have is answered, too: the code is `unknown`.
        """
        access = request.scope["state"]["access"]
        assert isinstance(access, Access)
        why: Why = state["engine"].why
        return await why.explain(access.project, id)
