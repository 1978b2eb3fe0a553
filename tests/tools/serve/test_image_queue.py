from __future__ import annotations

import asyncio

import numpy as np
import pytest

from runner.tools.serve.image_queue import Answer, ImageQueue, QueueFullError, WaitingImage, WorkerLostError


def contents(batch: list[WaitingImage]) -> list[bytes]:
    return [image.content for image in batch]


def test_a_request_is_added_as_a_whole_or_not_at_all():
    async def use() -> None:
        queue = ImageQueue(3, 2, 0.0)
        queue.put([b"1", b"2"])
        with pytest.raises(QueueFullError):
            queue.put([b"3", b"4"])
        assert len(queue) == 2
        queue.put([b"3"])
        assert contents(await queue.take()) == [b"1", b"2"]
        assert contents(await queue.take()) == [b"3"]

    asyncio.run(use())


def test_a_worker_waits_for_requests_that_are_being_received_and_for_no_others():
    async def use() -> None:
        queue = ImageQueue(9, 3, 60.0)
        queue.put([b"1"])
        assert contents(await queue.take()) == [b"1"], "nobody else is on the way"
        with queue.receiving():
            queue.put([b"2"])
            taking = asyncio.create_task(queue.take())
            await asyncio.sleep(0)
            queue.put([b"3", b"4"])
            assert contents(await taking) == [b"2", b"3", b"4"], "a full batch waits for nobody"
            queue.put([b"5"])
            taking = asyncio.create_task(queue.take())
            await asyncio.sleep(0)
            assert not taking.done()
        assert contents(await taking) == [b"5"], "the request brought no image"
        quick = ImageQueue(9, 3, 0.0)
        with quick.receiving():
            quick.put([b"6"])
            assert contents(await quick.take()) == [b"6"], "the time is over"

    asyncio.run(use())


def test_two_workers_share_what_there_is_and_a_cancelled_one_takes_nothing():
    async def use() -> None:
        queue = ImageQueue(9, 2, 0.0)
        first, second, third = (asyncio.create_task(queue.take()) for _ in range(3))
        await asyncio.sleep(0)
        third.cancel()
        queue.put([b"1", b"2", b"3"])
        assert contents(await first) + contents(await second) == [b"1", b"2", b"3"]
        assert len(queue) == 0

    asyncio.run(use())


def test_what_a_dead_worker_had_is_tried_once_more_alone():
    async def use() -> None:
        queue = ImageQueue(9, 2, 0.0)
        one, two, three = queue.put([b"1", b"2", b"3"])
        queue.put_back(await queue.take(), has_died=True)
        (suspect,) = await queue.take()
        assert suspect.content == b"1"
        suspect.answer.set_result(Answer(None, None, 0, np.zeros(1, np.float32)))  # type: ignore[arg-type]
        (suspect,) = await queue.take()
        queue.put_back([suspect], has_died=True)
        with pytest.raises(WorkerLostError):
            await two
        batch = await queue.take()
        assert contents(batch) == [b"3"]
        queue.put_back(batch, has_died=False)
        assert contents(await queue.take()) == [b"3"]
        queue.put_back(batch, has_died=True)
        with pytest.raises(WorkerLostError):
            await three
        assert one.done()

    asyncio.run(use())


def test_a_request_that_was_given_up_is_not_computed():
    async def use() -> None:
        queue = ImageQueue(9, 2, 0.0)
        gone, here = queue.put([b"1", b"2"])
        gone.cancel()
        assert contents(await queue.take()) == [b"2"]
        assert not here.done()
        (late,) = queue.put([b"3"])
        queue.fail_all()
        with pytest.raises(WorkerLostError):
            await late

    asyncio.run(use())
