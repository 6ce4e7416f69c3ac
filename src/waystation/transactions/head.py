"""The head of a transaction: one line of words that scripts alone write, and all may read."""

from __future__ import annotations

import msgspec

from waystation.transactions.states import State, Status

_STATES = {each.value: each for each in State}
_STATUSES: dict[str, Status | None] = {each.value: each for each in Status} | {"-": None}


class Head(msgspec.Struct, frozen=True, gc=False):
    """The words, in their order."""

    #: Ms of the last change of state.
    since: int
    state: State
    #: One more with every write.
    version: int
    #: One more with every claim and every forced end.
    epoch: int
    #: Commits under this epoch.
    commits: int
    #: Letters; empty for none.
    flags: str
    group: str
    #: `in` or `out`: where it is queued, or came from.
    queue: str
    #: Of the top frame.
    pipeline: str
    owner: str
    #: None while it is alive.
    status: Status | None
    #: Latest wake-up in ms, or 0.
    wake: int
    #: That it waits for; empty for none.
    switch: str
    #: Begun rescues since the last commit.
    rescues: int
    #: `<node>:<claim number>`; empty unless it runs.
    node: str
    #: `remove`, `ttl`, `snapshot`; empty unless it is to be archived.
    archive: str

    @property
    def cancelling(self) -> bool:
        """Whether a cancel was asked for, or the deadline has passed."""
        return "c" in self.flags or "t" in self.flags

    @property
    def suspect(self) -> bool:
        """Whether it was rescued and has not committed since: it may be what kills processes."""
        return "s" in self.flags


def parse(line: bytes) -> Head:
    """Reads the line; ValueError for one that is none."""
    words = line.decode().split(" ")
    try:
        (since, state, version, epoch, commits, flags, group, queue) = words[:8]
        (pipeline, owner, status, wake, switch, rescues, node, archive) = words[8:]
        return Head(
            int(since),
            _STATES[state],
            int(version),
            int(epoch),
            int(commits),
            _word(flags),
            group,
            queue,
            pipeline,
            owner,
            _STATUSES[status],
            int(wake),
            _word(switch),
            int(rescues),
            _word(node),
            _word(archive),
        )
    except (KeyError, ValueError) as error:
        raise ValueError(f"not the head of a transaction: {line[:200]!r}") from error


def _word(word: str) -> str:
    return "" if word == "-" else word
