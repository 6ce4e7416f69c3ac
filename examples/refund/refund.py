"""A refund that somebody has to approve within two days, and that is paid just once.

Run `waystation dev --app refund:app` in this folder, and `python ask.py` in another terminal. Kill
the first one in between, as hard as you like, and start it again.
"""

from pathlib import Path

import msgspec

from waystation import App, Fail, Wait


class Refund(msgspec.Struct):
    cents: int


class Bank:
    """Stands for a real one: every request is a line in a file."""

    def refund(self, refund: Refund, *, key: str) -> dict[str, int]:
        with Path("bank.txt").open("a", encoding="utf-8") as book:
            book.write(f"{key} {refund.cents}\n")
        return {"paid": refund.cents}


bank = Bank()

app = App()


@app.step("refund/approve")
async def approve(ctx, refund: Refund):
    match ctx.switch("approved"):
        case None:
            return Fail("nobody answered") if ctx.timed_out else Wait("approved", at_most="2d")
        case "yes":
            return refund
        case _:
            return Fail("refused")


@app.step("refund/pay")
async def pay(ctx, refund: Refund):
    return await ctx.once("pay", lambda: bank.refund(refund, key=ctx.idempotency_key))


app.pipeline("refund", ["refund/approve", "refund/pay"])
