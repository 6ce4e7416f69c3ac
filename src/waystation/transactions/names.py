"""Ids and keys of transactions; what the keys hold is in the catalogue of all keys.

A cell is a unit of atomicity, and its number is part of every id, so where a transaction lives
needs no look-up. With an external id the cell follows from that, and the script that starts a
transaction can see whether it is taken.
"""

from __future__ import annotations

import hashlib
import re

import xxhash

from waystation.errors import TransactionUnknownError
from waystation.logs import keys as log_names
from waystation.runtime.ids import IdSource
from waystation.store.keys import DEFAULT_PROJECT

#: The record log; a cell's partition has the number of the cell, and its tag is the cell's.
LOG = "tx"
#: Four hex digits of an id.
CELLS_MAX = 0x10000
#: The pub/sub hint that a definition has changed.
PIPELINES_TOPIC = "waystation.{pipelines}"
#: The register of nodes: registration key → last beat. Also the hint that a setting has changed.
NODES = "waystation.{nodes}"

_is_id = re.compile(r"tx-[0-9a-f]{40}").fullmatch


def new_id(cell: int, identity: IdSource) -> str:
    """An id that nobody else makes, in a cell."""
    return f"tx-{cell:04x}{identity.token(18)}"


def cell_of(transaction_id: str) -> int:
    """The cell of a transaction; TransactionUnknownError for what is no id at all."""
    if not _is_id(transaction_id):
        raise TransactionUnknownError(f"{transaction_id[:80]!r} is not the id of a transaction.")
    return int(transaction_id[3:7], 16)


def cell_for(owner: str, external_id: str, cells: int) -> int:
    """The cell of a transaction with an external id."""
    return xxhash.xxh64_intdigest(f"{owner}:{external_id}".encode()) % cells


def child_id(parent: str, round_: int, n: int) -> str:
    """The id of child `n` of a Parallel: the same whoever makes it, in its parent's cell."""
    digest = hashlib.sha1(f"{parent} {round_} {n}".encode(), usedforsecurity=False).hexdigest()
    return f"{parent[:7]}{digest[:36]}"


def tag(cell: int) -> str:
    """What every key of a cell begins with."""
    return f"{{{LOG}.{cell}}}:"


def log(cell: int) -> str:
    """The record log of a cell: the first key of every script."""
    return log_names.entries(LOG, cell)


def state(transaction_id: str) -> str:
    """The hash of a transaction."""
    return f"{tag(cell_of(transaction_id))}stateH:{transaction_id}"


def queue_in(cell: int, group: str) -> str:
    """Ids that begin a pipeline, or go on after a sleep."""
    return f"{tag(cell)}qInL:{group}"


def queue_out(cell: int, group: str) -> str:
    """Ids that return to a parent frame, or whose children have ended."""
    return f"{tag(cell)}qOutL:{group}"


def queue_admin(group: str) -> str:
    """Admin events of a node group; in cell 0 alone."""
    return f"{tag(0)}qAdminL:{group}"


def node_group(group: str) -> str:
    """Settings that every node of a node group follows; in cell 0 alone."""
    return f"{tag(0)}nodeGroupH:{group}"


def pipeline_key(project: str, pipeline: str) -> str:
    """How a pipeline is called in names of keys."""
    return pipeline if project == DEFAULT_PROJECT else f"{project}.{pipeline}"


def pipeline(cell: int, project: str, name: str) -> str:
    """The working copy of a pipeline's definition."""
    return f"{tag(cell)}pipelineH:{pipeline_key(project, name)}"


def hold_list(cell: int, project: str, name: str) -> str:
    """Ids of a paused pipeline."""
    return f"{tag(cell)}holdL:{pipeline_key(project, name)}"


def external_id(cell: int, owner: str, external: str) -> str:
    """Who has an external id."""
    return f"{tag(cell)}externalId:{owner}:{external}"


def sorted_set(cell: int, name: str) -> str:
    """`processingZ`, `leaseZ`, `sleepingZ`, `deadlineZ`, `sweepZ`, `toArchiveZ`, `waitersZ`."""
    return f"{tag(cell)}{name}"


def load_nonces(cell: int, minute: int) -> str:
    """Who may bring back which state; by the minute in which that was asked for."""
    return f"{tag(cell)}loadH:{minute}"


def load_sequence(cell: int) -> str:
    """The newest load nonce of a cell."""
    return f"{tag(cell)}loadSeq"


def archive_lock(cell: int, number: int) -> str:
    """Who archives (1), and until when nobody else does (2)."""
    return f"{tag(cell)}toArchiveLock{number}"


def archive_failed(cell: int) -> str:
    """What the archive has refused, and why."""
    return f"{tag(cell)}archiveFailedH"


def told(what: str) -> str:
    """That operators were told of something; in cell 0 alone."""
    return f"{tag(0)}toldS:{what}"


def counts(cell: int, series: str, slot: int) -> str:
    """Counts of a time slot, by its first second; `metric1H`, `metric2H` or `metric3H`."""
    return f"{tag(cell)}{series}:{slot}"


def work_topic(cell: int, group: str) -> bytes:
    """The pub/sub hint that a queue of a node group has something."""
    return f"{tag(cell)}work:{group}".encode()


def due_topic(cell: int) -> bytes:
    """The pub/sub hint that something is due earlier than was thought; it names the sorted set."""
    return f"{tag(cell)}due".encode()


def ended_topic(cell: int) -> bytes:
    """The pub/sub hint with the ids that have ended, blanks between them."""
    return f"{tag(cell)}ended".encode()


def progress_topic(cell: int) -> bytes:
    """The pub/sub hint with the id of one that has reported progress."""
    return f"{tag(cell)}progress".encode()
