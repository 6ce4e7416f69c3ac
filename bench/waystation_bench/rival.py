"""A job system of others, as a process of its own: fills its queue, or works it off.

    <interpreter of the peer> rival.py PEER SOCKET fill COUNT
    <interpreter of the peer> rival.py PEER SOCKET pace COUNT PER_SECOND
    <interpreter of the peer> rival.py PEER SOCKET work COUNT

It runs in the peer's environment, where nothing of ours is, so it knows the standard library and
the peer alone. Each peer has the settings that were fastest here, and one process; its job does
nothing but tell that it was called. `work` prints a line at the first call and one at the last.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

#: Jobs that an asynchronous worker has under way at once.
CONCURRENT = 100
#: Messages that a worker fetches ahead, where it can be told.
PREFETCH = 500

#: Where our own lines go.
_told_to = [1]

#: Told the stamp of each job that is called.
OnCall = Callable[[float], None]


class Calls:
    """Counts calls, from any thread, and says when the first and the last came."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._delays_ms: list[float] = []
        self._lock = threading.Lock()

    def note(self, stamp: float) -> None:
        """A job was called."""
        with self._lock:
            if not self._delays_ms:
                _say({})
            self._delays_ms.append((time.monotonic() - stamp) * 1000)
            self._left -= 1
            if not self._left:
                _say({"delays_ms": self._delays_ms})
                # Workers have threads and tasks of their own, which nobody needs to end in order.
                os._exit(0)


class CeleryRival:
    """Pool `solo`: the one that has no second process."""

    def __init__(self, path: str, on_call: OnCall) -> None:
        from celery import Celery  # noqa: PLC0415

        self._app = Celery("bench", broker=f"redis+socket://{path}")
        self._app.conf.update(
            task_ignore_result=True,
            worker_prefetch_multiplier=PREFETCH,
            broker_connection_retry_on_startup=True,
        )

        def job(stamp: float) -> None:
            on_call(stamp)

        self._job = self._app.task(job, name="job")

    def send(self, stamps: Iterator[float]) -> None:
        for stamp in stamps:
            self._job.apply_async((stamp,))

    def work(self) -> None:
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR")
        self._app.worker_main(["worker", "--pool=solo", "--concurrency=1", *quiet])


class DramatiqRival:
    """Eight threads and its own middleware (retries, limits), as its command line has it."""

    def __init__(self, path: str, on_call: OnCall) -> None:
        os.environ["dramatiq_queue_prefetch"] = str(PREFETCH)  # noqa: SIM112 (its name)
        import dramatiq  # noqa: PLC0415
        from dramatiq.brokers.redis import RedisBroker  # noqa: PLC0415
        from redis import Redis  # noqa: PLC0415

        self._broker = RedisBroker(client=Redis(unix_socket_path=path))
        self._worker = dramatiq.Worker
        self._job = dramatiq.actor(on_call, actor_name="job", broker=self._broker)

    def send(self, stamps: Iterator[float]) -> None:
        for stamp in stamps:
            self._job.send(stamp)

    def work(self) -> None:
        self._worker(self._broker, worker_threads=8).start()
        while True:
            time.sleep(1)


class HueyRival:
    """Four threads, no results, a queue that is waited on and not polled."""

    def __init__(self, path: str, on_call: OnCall) -> None:
        from huey import RedisHuey  # noqa: PLC0415

        self._huey = RedisHuey("bench", url=f"unix://{path}", results=False, blocking=True)
        self._job = self._huey.task(name="job")(on_call)

    def send(self, stamps: Iterator[float]) -> None:
        for stamp in stamps:
            self._job(stamp)

    def work(self) -> None:
        self._huey.create_consumer(workers=4, worker_type="thread", periodic=False).run()


class TaskiqRival:
    """The broker on a stream, which acknowledges."""

    def __init__(self, path: str, on_call: OnCall) -> None:
        from taskiq.api import run_receiver_task  # noqa: PLC0415
        from taskiq_redis import RedisStreamBroker  # noqa: PLC0415

        self._receive = run_receiver_task
        self._broker = RedisStreamBroker(f"unix://{path}", xread_count=CONCURRENT)

        async def job(stamp: float) -> None:
            on_call(stamp)

        self._job = self._broker.register_task(job, task_name="job")

    def send(self, stamps: Iterator[float]) -> None:
        async def send() -> None:
            await self._broker.startup()
            for stamp in stamps:
                await self._job.kiq(stamp)

        _run(send)

    def work(self) -> None:
        async def work() -> None:
            self._broker.is_worker_process = True
            await self._receive(self._broker, max_async_tasks=CONCURRENT, run_startup=True)

        _run(work)


class ArqRival:
    """Polls every 10 ms; results are not kept."""

    def __init__(self, path: str, on_call: OnCall) -> None:
        from arq import Worker, create_pool, func  # noqa: PLC0415
        from arq.connections import RedisSettings  # noqa: PLC0415

        self._worker, self._pool = Worker, create_pool
        self._settings = RedisSettings(unix_socket_path=path)

        async def job(_: Any, stamp: float) -> None:
            on_call(stamp)

        self._job = func(job, name="job")

    def send(self, stamps: Iterator[float]) -> None:
        async def send() -> None:
            pool = await self._pool(self._settings)
            for stamp in stamps:
                await pool.enqueue_job("job", stamp)

        _run(send)

    def work(self) -> None:
        async def work() -> None:
            worker = self._worker(
                functions=[self._job],
                redis_settings=self._settings,
                poll_delay=0.01,
                max_jobs=CONCURRENT,
                keep_result=0,
                handle_signals=False,
            )
            await worker.async_run()

        _run(work)


class SaqRival:
    """As it comes, with as many jobs at once as the others."""

    def __init__(self, path: str, on_call: OnCall) -> None:
        from redis.asyncio import Redis  # noqa: PLC0415
        from saq import Worker  # noqa: PLC0415
        from saq.queue.redis import RedisQueue  # noqa: PLC0415

        self._queue: Callable[[], Any] = lambda: RedisQueue(Redis(unix_socket_path=path))
        self._worker = Worker

        async def job(_: Any, *, stamp: float) -> None:
            on_call(stamp)

        self._job = job

    def send(self, stamps: Iterator[float]) -> None:
        async def send() -> None:
            queue = self._queue()
            await queue.connect()
            for stamp in stamps:
                await queue.enqueue("job", stamp=stamp)

        _run(send)

    def work(self) -> None:
        async def work() -> None:
            queue = self._queue()
            await queue.connect()
            jobs: list[Any] = [("job", self._job)]
            await self._worker(queue, functions=jobs, concurrency=CONCURRENT).start()

        _run(work)


RIVALS: dict[str, Callable[[str, OnCall], Any]] = {
    "arq": ArqRival,
    "celery": CeleryRival,
    "dramatiq": DramatiqRival,
    "huey": HueyRival,
    "saq": SaqRival,
    "taskiq": TaskiqRival,
}


def _run(main: Callable[[], Any]) -> None:
    """On uvloop where the peer has it."""
    try:
        import uvloop  # noqa: PLC0415

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    except ImportError:
        pass
    asyncio.run(main())


def _stamps(count: int, per_second: float) -> Iterator[float]:
    begun = time.monotonic()
    for number in range(count):
        if per_second:
            time.sleep(max(0.0, begun + number / per_second - time.monotonic()))
        yield time.monotonic()


def _say(what: dict[str, Any]) -> None:
    told = {"at": time.monotonic(), "cpu_seconds": time.process_time(), **what}
    os.write(_told_to[0], json.dumps(told).encode() + b"\n")


def main() -> None:
    """One verb, then the end."""
    peer, path, verb, count, *per_second = sys.argv[1:]
    rival = RIVALS[peer](path, Calls(int(count)).note)
    if verb == "work":
        # Some greet their user there.
        _told_to[0] = os.dup(1)
        os.dup2(2, 1)
        rival.work()
    else:
        rival.send(_stamps(int(count), float(per_second[0]) if per_second else 0.0))


if __name__ == "__main__":
    main()
