"""The workers of one version of a model: started, given batches, replaced when they die, ended."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from runner.base.console import LOGGER
from runner.base.errors import RunnerError, ServeError, error_named
from runner.base.wait_policy import brief_spinning
from runner.config.schema.calls.of_serving import ServeRules
from runner.tools.serve.frames import next_frame, send_frame
from runner.tools.serve.image_queue import Answer, ImageQueue, WaitingImage
from runner.tools.serve.observation import Observation
from runner.tools.serve.versions import ServedVersion

_MODULE = "runner.tools.serve.scoring_worker"
_SECONDS_TO_START = 900.0  # an export to ONNX, or a model on a slow disk
_SECONDS_TO_END = 10.0
_LONGEST_PAUSE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class ScoredBatch:
    """What is known of a batch once it is answered."""

    version: ServedVersion
    observations: Sequence[Observation]
    """Of the images that were scored."""
    num_images: int
    seconds: float


class WorkerPool:
    """The workers of a version. They take batches from :meth:`open` to :meth:`close`."""

    def __init__(
        self,
        version: ServedVersion,
        rules: ServeRules,
        queue: ImageQueue,
        *,
        on_batch: Callable[[ScoredBatch], None],
        on_death: Callable[[], None],
    ) -> None:
        self.version = version
        self._ready: set[int] = set()
        self._rules = rules
        self._queue = queue
        self._on_batch = on_batch
        self._on_death = on_death
        self._opened = asyncio.Event()
        self._is_closing = False
        self._keepers: list[asyncio.Task[None]] = []
        self._taking: set[asyncio.Task[list[WaitingImage]]] = set()
        self._first_starts: list[asyncio.Future[None]] = []

    @property
    def num_ready(self) -> int:
        """Workers that can score."""
        return len(self._ready)

    async def start(self) -> None:
        """Start all workers, and wait until each has loaded and warmed up its model.

        Raises:
            RunnerError: what the first worker says that can't; the others are ended.
        """
        loop = asyncio.get_running_loop()
        self._first_starts = [loop.create_future() for _ in range(self._rules.workers)]
        self._keepers = [loop.create_task(self._keep(number)) for number in range(self._rules.workers)]
        try:
            await asyncio.gather(*self._first_starts)
        except BaseException:
            await self.close()
            raise

    def open(self) -> None:
        """Let the workers take batches."""
        self._opened.set()

    async def close(self) -> None:
        """Let each worker answer the batch that it has, and end it."""
        self._is_closing = True
        for task in self._taking:
            task.cancel()
        for number, keeper in enumerate(self._keepers):
            if number not in self._ready or not self._opened.is_set():
                keeper.cancel()  # it holds no batch; one that loads a model would be waited for
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for start in self._first_starts:
            start.cancel()
            if not start.cancelled():
                start.exception()  # was told by `start`

    async def _keep(self, number: int) -> None:
        """Keep one worker alive until the pool is closed."""
        pause = 0.0
        while not self._is_closing:
            is_first = not self._first_starts[number].done()
            began = asyncio.get_running_loop().time()
            try:
                await self._live(number)
            except Exception as error:  # also what a worker says that is no answer: it is replaced
                if is_first and not self._first_starts[number].done():
                    self._first_starts[number].set_exception(_at_start(error))
                    return
                if self._is_closing:
                    return
                self._on_death()
                LOGGER.warning("worker %d: %s; another is started", number, str(error) or type(error).__name__)
                has_lived = asyncio.get_running_loop().time() - began > _LONGEST_PAUSE_SECONDS
                await asyncio.sleep(pause)
                pause = 0.0 if has_lived else min(max(2 * pause, 0.5), _LONGEST_PAUSE_SECONDS)

    async def _live(self, number: int) -> None:
        """One worker from its start to its end.

        Raises:
            RunnerError: it has ended, or can't load the model.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", _MODULE, str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **brief_spinning(), "PYTHONSAFEPATH": "1"},
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        ended = asyncio.create_task(process.wait())
        answering = asyncio.create_task(self._answer(number, reader, writer))
        try:
            await asyncio.wait({ended, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and ended.done():
                # What it said last may be still unread, such as why it can't load the model.
                await asyncio.wait({answering}, timeout=1.0)
            if not answering.done():
                raise ServeError(f"process {process.pid} was ended by {_cause(ended.result())}")
            with suppress(OSError, EOFError):
                return answering.result()
            code = await asyncio.wait_for(asyncio.shield(ended), _SECONDS_TO_END)
            raise ServeError(f"process {process.pid} was ended by {_cause(code)}")
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            writer.close()
            await _end(process, ended)

    async def _answer(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Wait until a worker is ready, and give it batches until the pool is closed."""
        rules = self._rules.model_dump_json()
        await send_frame(writer, {"folder": str(self.version.folder), "rules": rules, "number": number})
        async with asyncio.timeout(_SECONDS_TO_START):
            said, _ = await next_frame(reader)
        if "failed" in said:
            message = str(said["message"])
            raise error_named(str(said["failed"]), message) or ServeError(message)
        LOGGER.info("worker %-3d  %s %s on %s", number, self.version.name, self.version.version, said["ready"])
        self._ready.add(number)
        try:
            if not self._first_starts[number].done():
                self._first_starts[number].set_result(None)
            await self._opened.wait()
            while batch := await self._next_batch():
                await self._exchange(batch, reader, writer)
        finally:
            self._ready.discard(number)

    async def _next_batch(self) -> list[WaitingImage]:
        """The next batch; an empty one when the pool is closed."""
        while not self._is_closing:
            taking = asyncio.create_task(self._queue.take())
            self._taking.add(taking)
            try:
                batch = await taking
            except asyncio.CancelledError:
                if taking.done() and not taking.cancelled():
                    self._queue.put_back(taking.result(), has_died=False)
                taking.cancel()
                if self._is_closing:
                    return []
                raise
            finally:
                self._taking.discard(taking)
            if batch:
                return batch
        return []

    async def _exchange(
        self, batch: list[WaitingImage], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        contents = [image.content for image in batch]
        try:
            async with asyncio.timeout(self._rules.batch_seconds):
                await send_frame(writer, {"sizes": list(map(len, contents))}, contents)
                facts, raw = await next_frame(reader)
        except TimeoutError:
            raise ServeError(f"it has not answered a batch within {self._rules.batch_seconds:g} seconds") from None
        else:
            self._deliver(batch, facts, raw, loop.time() - began)
        finally:
            self._queue.put_back(batch, has_died=True)  # nothing, where all are answered

    def _deliver(self, batch: list[WaitingImage], facts: dict[str, list[object]], raw: bytes, seconds: float) -> None:
        probabilities = np.frombuffer(raw, np.float32).reshape(len(batch), -1)
        observations = [Observation(**one) if isinstance(one, dict) else None for one in facts["observations"]]
        pairs = zip(observations, facts["errors"], strict=True)
        scored = [one for one, error in pairs if one is not None and error is None]
        self._on_batch(ScoredBatch(version=self.version, observations=scored, num_images=len(batch), seconds=seconds))
        for image, error, seen, row in zip(batch, facts["errors"], observations, probabilities, strict=True):
            if not image.answer.done():
                said = str(error) if error is not None else None
                image.answer.set_result(Answer(self.version, said, seen.predicted if seen is not None else -1, row))


async def _end(process: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
    """Wait for a worker whose socket is closed; one that computes on is killed."""
    done, _ = await asyncio.wait({ended}, timeout=_SECONDS_TO_END if process.returncode is None else 0)
    if not done:
        with suppress(ProcessLookupError):
            process.kill()
        await ended


def _cause(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"itself, with exit code {code}"


def _at_start(error: BaseException) -> RunnerError:
    return error if isinstance(error, RunnerError) else ServeError(f"a worker can't be started: {error!r}")
