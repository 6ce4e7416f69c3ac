"""A turn: what a slot does with a run, from the line to its next move.

A turn calls a step, or several if they are pure; then it hands the move that follows to the
committer, and ends. When the verdict has come the run is back in the line, or is not ours any more.
A step begins only after what came before it is confirmed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from waystation.errors import (
    BusyError,
    CatalogueError,
    LogError,
    NotFoundError,
    PipelineUnknownError,
    StoreError,
    StoreFullError,
)
from waystation.runtime.logging import logger
from waystation.telemetry import metrics
from waystation.transactions import decisions, fans
from waystation.transactions.committer import Committer
from waystation.transactions.compensation import names_of
from waystation.transactions.context import Context
from waystation.transactions.entry import Entry
from waystation.transactions.held import VERDICTS, Verdict
from waystation.transactions.holding import Holding
from waystation.transactions.kids import read_kids
from waystation.transactions.limits import Limits
from waystation.transactions.outcomes import Call, Calls, Failure, Outcome, Pause
from waystation.transactions.pipeline import Pipeline
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.progress import Commit, FanOpen, Move, PassOn, Progress
from waystation.transactions.record import Attempt, Fan
from waystation.transactions.run import WORDS, Ended, Ending, Run, word_of
from waystation.transactions.services import Services
from waystation.transactions.slots import GivenUp, Slot
from waystation.transactions.states import Status
from waystation.transactions.step_call import StepCall, StepEnded
from waystation.transactions.step_threads import StepThreads
from waystation.transactions.steps import Step, StepBook
from waystation.transactions.store_time import StoreTime
from waystation.transactions.switches import seen_text

_log = logger("turns")

#: A transaction whose step nobody here serves is looked at again after this, by whoever does.
UNSERVED_MS = 10_000
#: Pause before children are created that found no room.
_FULL_SECONDS = 0.5
#: What keeps us from going on now, and says nothing about the transaction.
_AWAY = (StoreError, BusyError, CatalogueError)
_encode = msgspec.json.Encoder().encode
_steps = {word: metrics.transaction_steps.of(word) for word in WORDS}
_commits = {verdict: metrics.transaction_commits.of(verdict) for verdict in VERDICTS}


class Turns:
    """Takes turns with runs. `again` puts one back in the line, `let_go` ends our hold on it."""

    again: Callable[[Run], None]
    let_go: Callable[[Run], None]
    committer: Committer

    def __init__(
        self,
        book: StepBook,
        pipelines: Pipelines,
        progress: Progress,
        entry: Entry,
        holding: Holding,
        *,
        node: str,
        limits: Limits,
        time: StoreTime,
        services: Services | None = None,
    ) -> None:
        #: May be replaced at any time: a step that runs ends as it began.
        self.book = book
        self.threads = StepThreads()
        self._pipelines = pipelines
        self._progress = progress
        self._entry = entry
        self._holding = holding
        # An attempt is kept in every state, and names its node only as far as it takes to find it.
        self._node = node.removeprefix("nodeId-")[:12]
        self._limits = limits
        self._time = time
        self._services = services

    async def take(self, run: Run, slot: Slot) -> None:
        """One turn."""
        try:
            move = await self._turn(run, slot)
        except _AWAY as error:
            _log.warning("a run is given up", transaction=run.id, problem=str(error))
            move = None
        except StepEnded as ended:
            _log.warning("a step had to end", transaction=run.id, problem=str(ended))
            move = None
        except Exception as error:
            # A defect of ours. It costs this run its lease, and nobody else anything.
            _log.error("a turn broke", error=error, transaction=run.id)
            move = None
        if run.kept:
            return
        if move is None or run.lost:
            # Without a word: when the lease is over, another goes on from the last commit.
            self.let_go(run)
        else:
            run.moving = True
            self.committer.submit(run, move)

    def on_verdict(self, run: Run, move: Move, verdict: Verdict | None) -> None:
        """What the store has made of a move."""
        run.moving = False
        outcome = verdict.outcome if verdict is not None else "refused"
        _commits[outcome].inc()
        if verdict is not None and outcome in ("done", "known"):
            if isinstance(move, Commit | FanOpen):
                run.confirm(verdict)
                self.again(run)
                return
        elif outcome == "stale" and isinstance(move, PassOn):
            # The pipeline was changed just now. The step has ended: only its call is made again.
            self._pipelines.forget(run.owner, move.pipeline)
            run.state.frames.pop()
            run.definitions.pop()
            self.again(run)
            return
        elif outcome == "tree-full" and isinstance(move, FanOpen):
            # The step has ended: the transaction fails instead of opening its Parallel.
            run.state.fan = None
            too_many = decisions.too_many_descendants(move.descendants_max)
            run.ended = Ended(too_many, move.drop)
            self.again(run)
            return
        elif outcome in ("refused", "unknown", "not-running", "fan-incomplete"):
            _log.warning("a move was refused", transaction=run.id, epoch=run.epoch, why=outcome)
        self.let_go(run)

    # -- From the line to a move -------------------------------------------------------------

    async def _turn(self, run: Run, slot: Slot) -> Move | None:
        """The next move; None: the run is not ours, or cannot be worked on now."""
        if run.lost:
            return None
        begun = not run.suspect
        while run.ended is None:
            if run.stopping:
                run.stopping = False
                return decisions.boundary(run)
            if len(run.definitions) < len(run.state.frames):
                try:
                    await self._define(run)
                except PipelineUnknownError as error:
                    run.ended = Ended(_broken(error.message))
                    break
            fan = run.state.fan
            step = self.book.find(run.use.type) if fan is None else None
            if fan is None and step is None:
                return self._unserved(run)
            if not begun:
                # From here on it can kill the process again, and that counts.
                verdict = await self._holding.begin(run.held)
                if verdict.outcome != "done":
                    return None
                begun = True
            if fan is not None:
                return await self._fan(run, fan)
            assert step is not None
            run.ended = await self._call(run, step, slot)
            if run.ended is None:
                return None
            if step.pure and self._goes_on(run):
                run.ended = None
                continue
        return await self._decide(run)

    def _goes_on(self, run: Run) -> bool:
        """Whether a pure step leads to the next one without a move."""
        assert run.ended is not None
        if isinstance(run.ended.outcome, Call | Calls | Pause | Failure | Ending):
            return False
        if run.frame.step + 1 >= len(run.definitions[-1].steps):
            return False
        return (
            decisions.decide(run, run.ended, state_bytes_max=self._limits.state_bytes_max) is None
        )

    async def _decide(self, run: Run) -> Move | None:
        ended = run.ended
        assert ended is not None
        called: list[Pipeline] = []
        try:
            match ended.outcome:
                case Call(pipeline=name):
                    called = [await self._pipelines.active(run.owner, name)]
                case Calls(children=children):
                    names = [each.pipeline for each in children]
                    found = {
                        name: await self._pipelines.active(run.owner, name) for name in set(names)
                    }
                    called = [found[name] for name in names]
        except NotFoundError as error:
            ended = Ended(_broken(error.message), ended.drop)
        undos: dict[str, Pipeline] = {}
        for name in names_of(run):
            with contextlib.suppress(NotFoundError):
                undos[name] = await self._pipelines.active(run.owner, name)
        limits = self._limits
        return decisions.decide(
            run,
            ended,
            called,
            undos,
            state_bytes_max=limits.state_bytes_max,
            depth_max=limits.depth_max,
            descendants_max=limits.descendants_max,
        )

    async def _define(self, run: Run) -> None:
        """Has the definitions of all frames at hand: of the versions that they began with."""
        for frame in run.state.frames[len(run.definitions) :]:
            run.definitions.append(
                await self._pipelines.version(run.owner, frame.pipeline, frame.version)
            )

    def _unserved(self, run: Run) -> Move:
        note = f"node {self._node} does not serve step {run.use.type}"
        _log.warning("a step is not served here", transaction=run.id, step=run.use.type)
        return decisions.put_off(run, note, delay_ms=UNSERVED_MS)

    # -- Calling a step ----------------------------------------------------------------------

    async def _call(self, run: Run, step: Step, slot: Slot) -> Ended | None:
        """What came of the next step; None: it was given up, and the run with it."""
        call = run.call(self._progress, self._time.now_ms, self._services)
        options, begun_ms, begun_after = run.use.options, self._time.now_ms(), run.log_end
        timeout = min(step.timeout_seconds, self._limits.step_seconds_max)
        outcome: Outcome | Ending | None = None
        slot.begin(run, timeout)
        cancelled: asyncio.CancelledError | None = None
        try:
            outcome = await step.call(Context(call), run.frame.input, options, threads=self.threads)
        except asyncio.CancelledError as error:
            cancelled = error
        finally:
            given_up = slot.end()
        if cancelled is not None and not given_up:
            raise cancelled
        if given_up:
            outcome = self._gave_up(run, step, given_up, timeout)
            call.over = True
        if outcome is None:
            return None
        self._note(run, call, step.type, outcome, begun_ms, begun_after)
        drop = () if isinstance(outcome, Pause) else run.step_fields(call)
        seen = seen_text(call.seen) if call.seen else ""
        return Ended(outcome, drop, seen, step.pure)

    def _gave_up(self, run: Run, step: Step, why: GivenUp, timeout: float) -> Ending | None:
        if step.in_thread:
            self.threads.left_behind += 1
            _log.warning("a thread is left behind", transaction=run.id, step=step.type)
        if why != "timeout":
            run.kept = why == "stopping"
            return None
        note = f"Step {step.type} took longer than {timeout:g} s."
        return Ending(Status.TIMEOUT, _encode({"error": note}), note)

    def _note(
        self,
        run: Run,
        call: StepCall,
        step_type: str,
        outcome: Outcome | Ending,
        begun_ms: int,
        begun_after: int,
    ) -> None:
        attempt = Attempt(
            number=0,
            epoch=run.epoch,
            outcome=word_of(outcome),
            begun_ms=begun_ms,
            ended_ms=max(begun_ms, self._time.now_ms()),
            node=self._node,
            note=getattr(outcome, "note", ""),
            trace=getattr(outcome, "trace", ""),
        )
        _steps[attempt.outcome].inc()
        metrics.transaction_step_seconds.note((attempt.ended_ms - begun_ms) / 1000)
        run.note(call, step_type, attempt, begun_after=begun_after)

    # -- A Parallel --------------------------------------------------------------------------

    async def _fan(self, run: Run, fan: Fan) -> Move | None:
        """Goes on with a Parallel, wherever its parent's former holder has stopped."""
        kids = read_kids(run.extras.get(b"kids", b""))
        if kids is None or kids.round != fan.round:
            created = 0  # It was opened by this very run.
            total = len(fan.children)
        else:
            created, total = kids.created, kids.total
            if kids.done == kids.total:
                run.state.fan = None
                run.ended = fans.ended_fan(run, kids, state_bytes_max=self._limits.state_bytes_max)
                return await self._decide(run)
        kinds = ((each.pipeline, each.version) for each in fan.children)
        recordings = await self._pipelines.recordings(run.owner, kinds)
        while created < total and not run.lost:
            items = fans.chunk(run, fan, created, self._time.now_ms(), recordings)
            try:
                reply = await self._entry.fan_out(
                    run.held, round_=fan.round, first=created + 1, items=items
                )
            except (LogError, StoreFullError) as error:
                # Others make room. Meanwhile the lease is kept, and a cancel is heard.
                _log.warning("children find no room", transaction=run.id, problem=str(error))
                await asyncio.sleep(_FULL_SECONDS)
                if run.stopping:
                    break
                continue
            if reply.outcome != "done":
                return None
            created, run.log_end, run.version = reply.created, reply.log_end, reply.version
        if run.stopping or created < total:
            run.stopping = False
            return decisions.boundary(run)
        return decisions.fan_wait(run)


def _broken(note: str) -> Ending:
    return Ending(Status.INTERNAL_ERROR, _encode({"error": note}), note)
