"""The app of the refund example, and a bank that many processes share: it is a file."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from waystation import App, Fail, Wait


class Refund(msgspec.Struct):
    cents: int


class Bank:
    """Pays each key once, and remembers every time that it was asked."""

    @property
    def _file(self) -> Path:
        return Path(os.environ["REFUNDS_BANK"])

    async def refund(self, refund: Refund, *, key: str) -> dict[str, int]:
        with self._file.open("a") as file:
            file.write(f"{key}\n")
        return {"paid": refund.cents}

    def asked(self) -> list[str]:
        return self._file.read_text().split() if self._file.exists() else []


bank = Bank()

app = App()


@app.step("refund/approve")
async def approve(ctx, refund: Refund):  # type: ignore[no-untyped-def]
    match ctx.switch("approved"):
        case None:
            return Fail("nobody answered") if ctx.timed_out else Wait("approved", at_most="2d")
        case "yes":
            return refund
        case _:
            return Fail("refused")


@app.step("refund/pay")
async def pay(ctx, refund: Refund):  # type: ignore[no-untyped-def]
    return await ctx.once("pay", lambda: bank.refund(refund, key=ctx.idempotency_key))


app.pipeline("refund", ["refund/approve", "refund/pay"])
