"""The front process: listens, keeps a version served, and drains when it is asked to stop. Imports no torch."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import uvicorn

from runner.base.console import LOGGER
from runner.base.errors import ConfigError, Problem, RunnerError, ServeError
from runner.base.reasons import reason_of
from runner.base.stop import StopRequest
from runner.base.untrusted import UntrustedFileError, read_text
from runner.base.user_paths import typed_path
from runner.config.schema.calls.of_serving import ServeCall, ServeRules
from runner.tools.drift.drift_window import DriftWatch
from runner.tools.serve.connection import limited_connections
from runner.tools.serve.endpoints import Endpoints
from runner.tools.serve.image_queue import ImageQueue
from runner.tools.serve.observation import Observation, Observer
from runner.tools.serve.serving_metrics import ServingMetrics
from runner.tools.serve.versions import ServedVersion, is_alias, registered_version, take_version
from runner.tools.serve.worker_pool import ScoredBatch, WorkerPool

_KEEP_ALIVE_SECONDS = 75  # longer than the idle time of usual proxies, so that they close first
_BACKLOG = 2048
_SPARE_DESCRIPTORS = 256
_LEAST_TOKEN = 16


class Service:
    """One server: its queue, its metrics and the version that it serves."""

    def __init__(self, call: ServeCall, work_dir: Path) -> None:
        rules = call.serve
        self.queue = ImageQueue(rules.queue_size, rules.max_batch_size, rules.max_wait_milliseconds / 1000)
        self.metrics = ServingMetrics(lambda: len(self.queue), self._num_ready)
        self.observers: list[Observer] = []
        """Called with each scored batch; see :mod:`runner.tools.serve.observation`."""
        self.drift = DriftWatch(
            threshold=rules.drift_threshold,
            window_seconds=rules.drift_hours * 3600,
            log_file=_drift_log(rules.drift_log),
            clock=time.time,
        )
        self.observers.append(self._watch_drift)
        self.metrics.registry.register(self.drift)
        self._call = call
        self._work_dir = work_dir
        self._pool: WorkerPool | None = None
        self._swapping = asyncio.Lock()

    @property
    def current(self) -> ServedVersion | None:
        """The version that is served; None before the first is ready."""
        return self._pool.version if self._pool is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether a worker can score, and no drift is to take this server out of service."""
        return self._num_ready() > 0 and not (self._call.serve.drift_degrades and self.drift.has_drifted)

    def _num_ready(self) -> int:
        return self._pool.num_ready if self._pool is not None else 0

    async def load(self) -> None:
        """Load the version that `model` stands for now beside the one that is served, and then serve it.

        The images that wait are in no pool: the old workers answer what they have, the new ones take the rest.

        Raises:
            RunnerError: it can't be loaded; the old one is still served.
        """
        async with self._swapping:
            version = await asyncio.to_thread(take_version, self._call, self._work_dir)
            pool = WorkerPool(
                version, self._call.serve, self.queue, on_batch=self._record, on_death=self.metrics.record_death
            )
            try:
                await pool.start()
            except BaseException:
                shutil.rmtree(version.folder, ignore_errors=True)
                raise
            before, self._pool = self._pool, pool
            pool.open()
            self.metrics.record_version(version)
            self._watch_drift(version, ())  # begins anew, though nothing is scored yet
            if before is not None:
                await before.close()
                shutil.rmtree(before.version.folder, ignore_errors=True)
                self.metrics.record_swap(is_done=True)
            LOGGER.info("serving     %s %s", version.name, version.version)

    async def reload(self) -> None:
        """As :meth:`load`; a version that can't be loaded is a warning."""
        try:
            await self.load()
        except (RunnerError, OSError) as error:
            self.metrics.record_swap(is_done=False)
            named = f"{error.name}: {error}" if isinstance(error, RunnerError) else reason_of(error)
            kept = f"{self.current.name} {self.current.version}" if self.current is not None else "nothing"
            LOGGER.warning("the new version is not served, %s still is: %s", kept, named)

    def _record(self, batch: ScoredBatch) -> None:
        self.metrics.record_batch(batch)
        for observe in self.observers:
            observe(batch.version, batch.observations)

    def _watch_drift(self, version: ServedVersion, seen: Sequence[Observation]) -> None:
        if version is self.current:  # workers of the one before may still answer
            self.drift.observe(version.to_json(), version.card.reference, seen)

    async def close(self) -> None:
        """End the workers, after what they have in hand."""
        if self._pool is not None:
            await self._pool.close()
        self.queue.fail_all()
        self.drift.write_line()


def serve(call: ServeCall, stop: StopRequest) -> bool:
    """Answer requests until SIGTERM or SIGINT, and then those that were accepted.

    Returns:
        Whether all of these were answered within `serve.drain_seconds`.

    Raises:
        RunnerError: the address is taken, the token can't be read, or the first version can't be loaded.
    """
    token = _token(call.serve)
    listener = _listen(call.serve)
    _allow_connections(call.serve)
    with listener, tempfile.TemporaryDirectory(prefix="runner-serve-") as work_dir:
        return asyncio.run(_serve(call, stop, listener, token, Path(work_dir)))


async def _serve(
    call: ServeCall, stop: StopRequest, listener: socket.socket, token: str | None, work_dir: Path
) -> bool:
    rules, service, loop = call.serve, Service(call, work_dir), asyncio.get_running_loop()
    server = uvicorn.Server(
        uvicorn.Config(
            Endpoints(service, rules).application(token),
            http=limited_connections(rules.max_connections, rules.receive_seconds),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=rules.drain_seconds,
        )
    )
    _log_of_uvicorn()
    host, port = listener.getsockname()[:2]
    LOGGER.info("address     http://%s:%d", f"[{host}]" if ":" in host else host, port)
    _warn_if_open(rules, token)
    first = loop.create_task(service.load())

    def stop_if_failed(task: asyncio.Task[None]) -> None:
        server.should_exit = server.should_exit or task.cancelled() or task.exception() is not None

    first.add_done_callback(stop_if_failed)
    watching = loop.create_task(_watch(call, service, first))
    writing = loop.create_task(_write_drift(service.drift))
    num_lost = 0
    try:
        if stop.received is None:
            await server.serve(sockets=[listener])
            num_lost = len(server.server_state.tasks)  # which uvicorn has cancelled after the time of grace
    finally:
        for task in (watching, writing, first):
            task.cancel()
        await asyncio.gather(watching, writing, return_exceptions=True)
        with suppress(asyncio.CancelledError):
            await first
        await service.close()
    if num_lost:
        message = "stopped     %d requests that were accepted were not answered within serve.drain_seconds = %g"
        LOGGER.warning(message, num_lost, rules.drain_seconds)
    else:
        LOGGER.info("stopped     all requests that were accepted are answered")
    return num_lost == 0


async def _watch(call: ServeCall, service: Service, first: asyncio.Task[None]) -> None:
    """Load the model again on SIGHUP, and when the registry's alias names another version.

    A version that can't be loaded is not tried again by itself.
    """
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, asked.set)
    await asyncio.wait({first})
    tried = service.current.version if service.current is not None else None
    said = ""
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(call.serve.watch_seconds if is_alias(call) else None):
                await asked.wait()
        try:
            named = await asyncio.to_thread(registered_version, call)
        except Exception as error:  # whatever a registry answers, what is served goes on
            if said != (said := str(error)):
                LOGGER.warning("the registry can't be asked, and the version stays: %s", error)
            named = None
        if asked.is_set() or (named is not None and str(named) != tried):
            asked.clear()
            tried = str(named) if named is not None else tried
            await service.reload()


async def _write_drift(drift: DriftWatch) -> None:
    """Write a line about the drift after each window."""
    while True:
        await asyncio.sleep(drift.seconds_to_next_line())
        drift.write_line()


def _drift_log(path: str | None) -> Path | None:
    """The file that lines about the drift are appended to.

    Raises:
        ConfigError: there is no such folder, or it is no file.
    """
    if path is None:
        return None
    file = typed_path(path, "serve.drift_log").absolute()
    if not file.parent.is_dir() or (file.exists() and not file.is_file()):
        message = "must be a file, new or not, in a folder that exists"
        raise ConfigError([Problem(key="serve.drift_log", value=path, has_value=True, message=message)])
    return file


def _token(rules: ServeRules) -> str | None:
    """The token that requests must have; None: none is asked for.

    Raises:
        ConfigError: it can't be read, or is too short to be one.
    """
    if rules.token_file is not None:
        key, value = "serve.token_file", rules.token_file
        try:
            token = read_text(typed_path(value, key)).strip()
        except (OSError, UntrustedFileError) as error:
            raise ConfigError([Problem(key=key, value=value, has_value=True, message=reason_of(error))]) from error
    elif rules.token_variable is not None:
        key, value = "serve.token_variable", rules.token_variable
        token = os.environ.get(value, "").strip()
    else:
        return None
    if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        message = f"there must be a token of at least {_LEAST_TOKEN} ASCII characters without spaces"
        raise ConfigError([Problem(key=key, value=value, has_value=True, message=message)])
    return token


def _listen(rules: ServeRules) -> socket.socket:
    """A socket that listens.

    Raises:
        ServeError: the address is taken, or none of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            rules.host, rules.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ServeError(
            f"can't listen at {rules.host}, port {rules.port}: {reason_of(error)}; another serve.port may be free, and "
            "serve.port=0 takes one that is"
        ) from error
    return listener


def _allow_connections(rules: ServeRules) -> None:
    """Raise this process's own limit of open files to what the connections need, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = rules.max_connections + _SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        if raised < wanted:
            LOGGER.warning("this system lets a process open %d files, too few for serve.max_connections", hard)


def _warn_if_open(rules: ServeRules, token: str | None) -> None:
    if token is None and rules.host not in ("127.0.0.1", "::1", "localhost"):
        LOGGER.warning("anyone who reaches %s may ask: serve.token_file=FILE asks for a token", rules.host)


def _log_of_uvicorn() -> None:
    """Show uvicorn's errors as ours; its warnings are one for each malformed request of a stranger."""
    theirs = logging.getLogger("uvicorn")
    theirs.setLevel(logging.ERROR)
    theirs.propagate = False
    handlers: Sequence[logging.Handler] = LOGGER.handlers
    theirs.handlers = list(handlers)
