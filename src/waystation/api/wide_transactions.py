"""`/v1/transactions/{id}/…`: cancelling, waking, and looking closely.

What is started, looked at and switched goes through `transaction_routes.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Controller, Request, get, post
from litestar.datastructures import State
from litestar.params import FromPath, FromQuery

from waystation.access import Access, Scope
from waystation.transactions.transactions import (
    CAUSE,
    CancelReply,
    Children,
    Journal,
    Transactions,
)


class Woken(msgspec.Struct, kw_only=True):
    """It was woken."""

    id: str


class TransactionController(Controller):
    """Transactions of the caller's own project."""

    path = "/transactions"
    tags = ("transactions",)

    @post(
        "/{id:str}/cancel",
        opt={"scope": Scope.WRITE},
        summary="Cancel a transaction",
        status_code=200,
    )
    async def cancel(
        self,
        request: Request[Any, Any, Any],
        state: State,
        id: FromPath[str],  # noqa: A002 (so it is called in the path)
        cause: FromQuery[str] = CAUSE,
    ) -> CancelReply:
        """Cancels at once, or, what runs, at its next commit; 409 for what has ended."""
        return await _transactions(state).cancel(_project(request), id, cause=cause)

    @post(
        "/{id:str}/wake",
        opt={"scope": Scope.WRITE},
        summary="Wake a transaction",
        status_code=200,
    )
    async def wake(
        self,
        request: Request[Any, Any, Any],
        state: State,
        id: FromPath[str],  # noqa: A002 (so it is called in the path)
    ) -> Woken:
        """Wakes what sleeps, waits for a switch or is scheduled, before its time; else 409."""
        await _transactions(state).wake(_project(request), id)
        return Woken(id=id)

    @get("/{id:str}/journal", opt={"scope": Scope.READ}, summary="See what happened")
    async def journal(
        self,
        request: Request[Any, Any, Any],
        state: State,
        id: FromPath[str],  # noqa: A002 (so it is called in the path)
    ) -> Journal:
        """Shows each step with its newest attempts, what it logged, and where it broke."""
        return await _transactions(state).journal(_project(request), id)

    @get("/{id:str}/children", opt={"scope": Scope.READ}, summary="List children")
    async def children(
        self,
        request: Request[Any, Any, Any],
        state: State,
        id: FromPath[str],  # noqa: A002 (so it is called in the path)
    ) -> Children:
        """Lists the children of the Parallel that is under way, or that it has ended in."""
        return await _transactions(state).children(_project(request), id)


def _project(request: Request[Any, Any, Any]) -> str:
    access = request.scope["state"]["access"]
    assert isinstance(access, Access)
    return access.project


def _transactions(state: State) -> Transactions:
    transactions: Transactions = state["engine"].transactions
    return transactions
