"""The committer: calls of a bounded size, whatever moves carry."""

from __future__ import annotations

import asyncio

from tests.helpers.interleavings import count_calls
from tests.transactions.helpers import GROUP, VERSION, TransactionStore, open_transactions
from waystation.store.embedded.server import EmbeddedServer
from waystation.transactions.committer import Committer
from waystation.transactions.held import Verdict
from waystation.transactions.progress import Finish, Move
from waystation.transactions.record import Frame, TransactionState, encode
from waystation.transactions.run import Run
from waystation.transactions.states import Status

PIECE = b"x" * 800_000


async def runs(tx: TransactionStore, count: int) -> list[Run]:
    """Transactions that are held."""
    state = TransactionState(type="p", frames=[Frame("p", VERSION, GROUP, 0, b"1")])
    for _ in range(count):
        await tx.start(state=encode(state))
    return [Run(each, log_end=0) for each in await tx.claim(count)]


async def test_a_call_has_a_bounded_number_of_bytes_and_what_goes_to_parents_counts(
    store_server: EmbeddedServer,
) -> None:
    """A move has 2.4 MB, a third of which is for its parent: no two of them fit into one call."""
    async with open_transactions(store_server) as tx:
        told: list[str] = []

        def on_verdict(run: Run, move: Move, verdict: Verdict | None) -> None:
            assert verdict is not None
            told.append(verdict.outcome)

        committer, held = Committer(tx.progress, on_verdict), await runs(tx, 4)
        calls = count_calls(tx.store)
        for run in held:
            move = Finish(
                held=run.held, state=PIECE, detail=PIECE, status=Status.SUCCESS, output=PIECE
            )
            committer.submit(run, move)
        await asyncio.gather(*committer._tasks)
        assert told == ["done"] * 4
        assert calls() == 4
