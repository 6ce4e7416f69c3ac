"""The section `[transactions]` of the settings."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from waystation.setting_section import Count, Seconds
from waystation.setting_section import Section as _Section


class TransactionSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Transactions: the code that is run, and how it is run."""

    #: The app whose steps this process runs, `module:name`; `built-in`: our own steps alone; empty:
    #: none.
    app: str = ""
    #: How long what is complete stays before it may be archived.
    archive_delay_seconds: Seconds = 60.0
    #: What a cancel, or a deadline that has passed, leaves a step that runs.
    cancel_grace_seconds: Seconds = 30.0
    #: Units of atomicity of the data set; fixed when it is created.
    cells: Annotated[int, Meta(ge=1, le=65536)] = 1
    #: How long the external id of what is complete stays taken.
    external_id_seconds: Seconds = 172_800.0
    #: What a stopping process leaves steps that run; what has not ended then runs elsewhere.
    grace_seconds: Seconds = 5.0
    #: The node group whose queues this process serves.
    group: Annotated[str, Meta(pattern=r"^[0-9a-z][0-9a-z_-]{0,62}$")] = "master"
    #: What is claimed is another's, if its worker was not heard for this long.
    lease_seconds: Annotated[float, Meta(ge=1, le=3600)] = 10.0
    #: Claimed ahead of those that run, so that no worker waits for the store.
    prefetch: Annotated[int, Meta(ge=0, le=10_000)] = 200
    #: Load the app anew when one of its files changes; `dev` says yes.
    reload: bool = False
    #: How often a step that runs alone may take its process down; once more ends its transaction.
    rescues_max: Count = 3
    #: Larger states are refused: data, outputs and journal of a transaction together.
    state_bytes_max: Annotated[int, Meta(ge=1024, le=8_388_608)] = 1_048_576
    #: The most that a step can ask for by its `timeout`; one that asks for nothing has 180 s.
    step_seconds_max: Seconds = 3600.0
    #: Steps that run at a time.
    workers: Annotated[int, Meta(ge=1, le=10_000)] = 100
