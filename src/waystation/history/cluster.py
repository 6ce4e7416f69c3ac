"""Resources of a standalone Spark cluster: refuse a job whose executors no worker can run.

Spark itself waits without a limit for workers that are large enough, and only its log says so. YARN
refuses such an application at its start, and Kubernetes reports its pods.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from py4j.protocol import Py4JError
from pyspark import SparkContext

from waystation.errors import ClusterResourcesError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger

_log = logger("history")
#: Time for the first worker to register, and for other applications to end.
_PATIENCE_S = 12.0
#: Time for larger workers to register if the registered ones are too small.
_LARGER_WORKER_S = 4.0
_LOOK_S = 0.5


class Resources(msgspec.Struct, frozen=True, order=True):
    """Memory and cores of a worker, or of an executor."""

    memory_mb: int
    cores: int

    def fits(self, other: Resources) -> bool:
        """Return whether these resources contain the others."""
        return self.memory_mb >= other.memory_mb and self.cores >= other.cores

    def __str__(self) -> str:
        return f"{self.memory_mb:,} MiB and {self.cores} core{'s' if self.cores > 1 else ''}"


class ClusterState(msgspec.Struct, frozen=True):
    """View of the master on an application and on the workers that are alive."""

    #: Resources that the application requests for each executor.
    executor: Resources
    #: Whether the master has assigned an executor to the application.
    is_served: bool
    workers: Sequence[Resources]
    free: Sequence[Resources]

    @property
    def has_only_small_workers(self) -> bool:
        """Whether workers are registered, and none of them can run an executor."""
        return bool(self.workers) and not any(each.fits(self.executor) for each in self.workers)


def require_executors(context: SparkContext, settings: Mapping[str, str]) -> None:
    """Return when a standalone cluster runs an executor of the application.

    Return at once for other masters, and after a while if workers have the resources but the
    executor starts slowly. Raise ClusterResourcesError if no worker has them. `settings` are the
    Spark settings of the operator, one of which the error may name.
    """
    master = str(context.master)
    if not master.startswith("spark://"):
        return
    is_dynamic = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
    clock = Clock()
    begun_s = clock.uptime_s()
    while True:
        state = _read_state(context, master)
        if state is None or state.is_served:
            return
        refusal = refuse(master, state, settings, needs_free=not is_dynamic)
        if refusal is None and is_dynamic:
            return  # Spark requests executors when there is a job.
        waited_s = clock.uptime_s() - begun_s
        if waited_s > (_LARGER_WORKER_S if state.has_only_small_workers else _PATIENCE_S):
            break
        time.sleep(_LOOK_S)
    if refusal is not None:
        raise refusal


def refuse(
    master: str, state: ClusterState, settings: Mapping[str, str], *, needs_free: bool = True
) -> ClusterResourcesError | None:
    """Return the error of an application that no worker can serve; None if one can."""
    wanted = state.executor
    if not state.workers:
        return ClusterResourcesError(
            f"The Spark cluster {master} has no worker.",
            hint="Start a worker, or name another cluster with --master.",
        )
    if state.has_only_small_workers:
        largest = max(state.workers)
        return ClusterResourcesError(
            f"No worker of the Spark cluster {master} can run an executor: it needs {wanted}, and"
            f" the largest worker has {largest}.",
            hint=f"{_remedy(wanted, largest, settings)}, or start larger workers.",
        )
    if needs_free and not any(worker.fits(wanted) for worker in state.free):
        free = max(state.free)
        return ClusterResourcesError(
            f"Other applications use the Spark cluster {master}: an executor needs {wanted}, and"
            f" no worker has more than {free.memory_mb:,} MiB and {max(0, free.cores)} cores free.",
            hint="Run the command again when they have ended. spark.cores.max in [history.spark]"
            " limits the cores that one application takes.",
        )
    return None


def _remedy(wanted: Resources, largest: Resources, settings: Mapping[str, str]) -> str:
    if wanted.memory_mb <= largest.memory_mb:
        return f"Lower spark.executor.cores in [history.spark] to at most {largest.cores}"
    if "spark.executor.memory" in settings:
        return f"Lower spark.executor.memory in [history.spark] to at most {largest.memory_mb}m"
    return f"Lower history.memory (--memory) to at most {largest.memory_mb}m"


def _read_state(context: SparkContext, master: str) -> ClusterState | None:
    """Ask the active master; return None if none of them answers."""
    for place in master.removeprefix("spark://").split(","):
        try:
            found = _ask_master(context, f"spark://{place}")
        except (Py4JError, TypeError, AttributeError) as error:
            # Of the last two, Py4J raises one for a class or method that this Spark does not have.
            _log.warning("cluster state unknown", master=place, error=error)
            continue
        if found is not None:
            return found
    return None


def _ask_master(context: SparkContext, url: str) -> ClusterState | None:
    """Ask a master as Spark's own tools do; return None if it is in standby."""
    jvm: Any = context._jvm
    spark = jvm.org.apache.spark
    address = spark.rpc.RpcAddress.fromSparkURL(url)
    java_context: Any = context._jsc
    # Not by `SparkEnv`: the installed package lacks a class of one of its methods, so that Py4J
    # cannot call any of them.
    rpc = java_context.sc().schedulerBackend().rpcEnv()
    endpoint = rpc.setupEndpointRef(address, "Master")
    request = getattr(getattr(spark.deploy, "DeployMessages$RequestMasterState$"), "MODULE$")
    any_class = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$").Any()
    found = endpoint.askSync(request, any_class)
    if str(found.status().toString()) != "ALIVE":
        return None
    ours = [each for each in found.activeApps() if each.id() == context.applicationId]
    if not ours:
        return None
    wanted = ours[0].desc()
    cores = wanted.coresPerExecutor()
    alive = [worker for worker in found.workers() if worker.isAlive()]
    return ClusterState(
        executor=Resources(wanted.memoryPerExecutorMB(), cores.get() if cores.isDefined() else 1),
        is_served=ours[0].coresGranted() > 0,
        workers=[Resources(worker.memory(), worker.cores()) for worker in alive],
        free=[Resources(worker.memoryFree(), worker.coresFree()) for worker in alive],
    )
