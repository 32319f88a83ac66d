"""Where rehearsals run: in processes on this machine, or on a cluster through a backend of joblib."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from importlib import util
from typing import Any, Protocol

import psutil

from windtunnel.errors import UsageError
from windtunnel.planning.forkservers import ForkServers
from windtunnel.planning.rehearsal import Job, Rehearsed, interrupted, rehearse

RESIDENT_BYTES = 1 << 30
"""Memory of this machine that one process of a rehearsal is assumed to need until the first one has ended, bytes."""
BACKENDS = ("local", "dask", "ray")
RETURNED = {"dask": "generator_unordered", "ray": "list"}
"""How joblib returns the results of a batch: as they complete, if the backend can."""


class Pool(Protocol):
    """Takes jobs and returns their results in the order in which they end."""

    def submit(self, number: int, job: Job) -> None:
        """Submit a job; its result is returned with `number`."""

    def results(self) -> Iterator[tuple[int, Rehearsed]]:
        """Wait until a job is done, and return all results that are ready."""

    def close(self) -> None:
        """End all running jobs."""

    @property
    def busy(self) -> int:
        """The number of jobs without a result."""


def processors() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalPool:
    """Processes on this machine: at most `size` at once, fewer if its memory does not allow more.

    A rehearsal of several ranks counts as that many processes; one that is larger than the pool runs alone. With
    `servers`, a rehearsal of a single process is a fork of a Python that has imported the program's libraries.
    """

    def __init__(self, size: int | None = None, servers: ForkServers | None = None) -> None:
        self.size = size or processors()
        self._threads = ThreadPoolExecutor(max_workers=self.size, thread_name_prefix="rehearsal")
        self._waiting: deque[tuple[int, Job]] = deque()
        self._running: dict[Future[Rehearsed], tuple[int, int]] = {}
        self._resident_bytes = RESIDENT_BYTES
        self._servers = servers

    @property
    def busy(self) -> int:
        """The jobs that wait or run."""
        return len(self._waiting) + len(self._running)

    def submit(self, number: int, job: Job) -> None:
        """Append a job to the queue."""
        self._waiting.append((number, job))

    def results(self) -> Iterator[tuple[int, Rehearsed]]:
        """Start as many jobs as there is room for, and return what has ended."""
        self._start()
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        for future in done:
            number, _ = self._running.pop(future)
            found = future.result()
            self._resident_bytes = max(self._resident_bytes, found.measurement.resident_bytes)
            yield number, found

    def _start(self) -> None:
        while self._waiting:
            number, job = self._waiting[0]
            used = sum(slots for _, slots in self._running.values())
            needed = self._resident_bytes * job.slots
            if self._running and (used + job.slots > self.size or needed > psutil.virtual_memory().available):
                return
            self._waiting.popleft()
            self._running[self._threads.submit(rehearse, job, self._servers)] = number, job.slots

    def close(self) -> None:
        """Discard waiting jobs, and end the processes of running ones."""
        self._waiting.clear()
        interrupted.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        interrupted.clear()
        if self._servers is not None:
            self._servers.close()


class JoblibPool:
    """A cluster: waiting jobs are sent together, as one batch of joblib's.

    Each of its machines needs windtunnel, the program and the program's imports, at the same paths.
    """

    def __init__(self, backend: str, address: str | None = None, size: int | None = None) -> None:
        self._settings: dict[str, Any] = {"n_jobs": size or -1}
        self._backend = backend
        self._address = address
        self._waiting: list[tuple[int, Job]] = []
        self._opened: Any = None
        self._open()

    def _open(self) -> None:
        require(self._backend)
        if self._backend == "dask":
            from dask.distributed import Client

            self._opened = Client(self._address) if self._address else Client(threads_per_worker=1)
        else:
            import ray
            from ray.util.joblib import register_ray

            ray.init(address=self._address, ignore_reinit_error=True, log_to_driver=False)
            register_ray()
            self._opened = ray

    @property
    def busy(self) -> int:
        """The jobs of the next batch."""
        return len(self._waiting)

    def submit(self, number: int, job: Job) -> None:
        """Add a job to the next batch."""
        self._waiting.append((number, job))

    def results(self) -> Iterator[tuple[int, Rehearsed]]:
        """Run the whole batch."""
        import joblib

        batch, self._waiting = self._waiting, []
        with joblib.parallel_config(backend=self._backend, **self._settings):
            parallel = joblib.Parallel(batch_size=1, return_as=RETURNED[self._backend])
            yield from parallel(joblib.delayed(_numbered)(number, job) for number, job in batch)

    def close(self) -> None:
        """Disconnect from the cluster; one started for this plan is shut down."""
        self._waiting.clear()
        if self._backend == "dask":
            self._opened.close()
        else:
            self._opened.shutdown()


def _numbered(number: int, job: Job) -> tuple[int, Rehearsed]:
    return number, rehearse(job)


def require(backend: str) -> None:
    """Raise UsageError when a package that a backend needs is missing."""
    needed = {"dask": ("joblib", "distributed"), "ray": ("joblib", "ray")}[backend]
    missing = [name for name in needed if util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"--backend {backend} needs {' and '.join(missing)}: pip install 'windtunnel[{backend}]' brings it"
        )


def open_pool(backend: str = "local", address: str | None = None, size: int | None = None) -> Pool:
    """The pool of that name; `address` is the scheduler's (None: a cluster on this machine)."""
    if backend == "local":
        if address is not None:
            raise UsageError("--scheduler is the address of a cluster: give --backend dask or --backend ray with it")
        return LocalPool(size, ForkServers())
    return JoblibPool(backend, address, size)
