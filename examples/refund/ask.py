"""Asks for a refund, approves it, and waits for its end; `refund.py` says what to run first."""

from waystation import Waystation

ws = Waystation("http://127.0.0.1:7070")
tx = ws.transactions.start("refund", {"cents": 500}, external_id="r-17")
tx.set_switch("approved", "yes")
print(tx.wait("30s").status)
