"""How large a packed state may be: what is too large loses its journal first."""

from __future__ import annotations

from waystation.transactions.record import TransactionState, encode


class StateTooLargeError(Exception):
    """A state that is not kept: the transaction has to end with less."""


def packed(state: TransactionState, bytes_max: int) -> bytes:
    """The stored form. What is too large loses its journal first: older parts, then older steps."""
    found = encode(state)
    for shorten in (_forget_details, _forget_steps):
        if len(found) <= bytes_max:
            return found
        shorten(state)
        found = encode(state)
    if len(found) > bytes_max:
        raise StateTooLargeError(f"The state has {len(found)} bytes.")
    return found


def _forget_details(state: TransactionState) -> None:
    for journal in state.journal[:-1]:
        journal.logs = []
        del journal.last[:-1]


def _forget_steps(state: TransactionState) -> None:
    del state.journal[:-1]
    for journal in state.journal:
        journal.logs = []
        del journal.last[:-1]
