"""`serve` under load: `python benchmarks/serve_load.py [--peers PYTHON] [--small] [--soak N] [--swaps N] [--slow N]`.

Without --soak, --swaps and --slow: requests per second and their latency at 1, 8 and 64 clients that each ask again as
soon as they are answered, side by side with a bare FastAPI handler without batches and with LitServe in the shape of
its examples (benchmarks/peers/). PYTHON is one with fastapi, python-multipart, uvicorn, litserve, torch, torchvision,
safetensors and Pillow; without it only `serve` is measured. The clients run in this process, on the same cores.

--soak N: N requests, one in a hundred hostile: none lost, none answered wrongly, memory at a tenth and at the end.
--swaps N: N times another version under load: none lost, each answered by one version.
--slow N: N clients that never finish their request, and come back when they are closed: what others wait meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from side_by_side import (
    PEERS,
    BenchmarkError,
    Measured,
    Side,
    compare,
    environment,
    parser,
    record,
    repeats_of,
)

import runner
from runner.base.files import sha256_of

CLIENTS = (1, 8, 64)
NUM_IMAGES = 32
BOUNDARY = "edge"
SLOW_SECONDS = 10.0
HOSTILE = (
    (b"<svg onload=alert(1)>", 422),
    (b"\xff\xd8\xff\xe0" + b"\0" * 500, 422),
    (b"\x89PNG\r\n\x1a\n" + b"\0" * 500, 422),
    (b"P6 " + b"# " * 40_000, 422),
    (b"", 422),
    (b"MZ" + b"\x90" * 5000, 422),
)


class Response(NamedTuple):
    status: int
    body: bytes
    seconds: float


def request_of(content: bytes) -> bytes:
    """A POST of a form with one image."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n'
    body = head.encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    return (
        f"POST /score HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


class Client:
    """One connection, which asks anew where the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> Response:
        began = time.perf_counter()
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        if b"connection: close" in head:
            self.close()
        return Response(int(head[9:12]), body, time.perf_counter() - began)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def load(port: int, requests: Sequence[bytes], num_clients: int, seconds: float) -> list[Response]:
    """What clients are answered that ask without a pause."""
    responses: list[Response] = []
    end = time.perf_counter() + seconds

    async def go_on(number: int) -> None:
        client = Client(port)
        while time.perf_counter() < end:
            responses.append(await client.ask(requests[number % len(requests)]))
            number += 1
        client.close()

    await asyncio.gather(*(go_on(number) for number in range(num_clients)))
    return responses


@contextlib.contextmanager
def server(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A server, from when it is ready; the port is the last but what follows it in the command."""
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with contextlib.suppress(ProcessLookupError):  # LitServe leaves processes behind
            os.killpg(process.pid, signal.SIGKILL)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    ask = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchmarkError(f"the server has ended with exit code {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(ask)
            if connection.recv(12)[9:12] == b"200":
                return
        time.sleep(0.1)
    raise BenchmarkError("the server was not ready in time")


def figures(command: Callable[[int], Sequence[str]], requests: Sequence[bytes], seconds: float) -> dict[str, float]:
    """Start a server, and measure it with each number of clients."""
    port, found = free_port(), {}
    with server(command(port)) as process:
        wait_until_ready(process, port)
        asyncio.run(load(port, requests, 8, min(seconds, 3)))
        for num_clients in CLIENTS:
            began = time.perf_counter()
            responses = asyncio.run(load(port, requests, num_clients, seconds))
            elapsed = time.perf_counter() - began
            if bad := [response for response in responses if response.status != 200]:
                raise BenchmarkError(f"{len(bad)} requests were not answered: {bad[0]}")
            cuts = statistics.quantiles([response.seconds * 1000 for response in responses], n=100)
            found[f"requests_per_second_{num_clients}"] = len(responses) / elapsed
            found |= {f"p{part}_milliseconds_{num_clients}": cuts[part - 1] for part in (50, 95, 99)}
    return found


def make_images() -> list[bytes]:
    """JPEGs of smooth random pictures, about as large as photographs when compressed."""
    generator, images = np.random.default_rng(0), []
    for _ in range(NUM_IMAGES):
        file = io.BytesIO()
        small = Image.fromarray(generator.integers(0, 256, (48, 64, 3), dtype=np.uint8))
        small.resize((500, 375), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        images.append(file.getvalue())
    return images


def train(place: Path, name: str, size: int) -> Path:
    """A model of the right size; what it knows does not matter."""
    data = ["data=synthetic", "data.num_classes=10", "data.num_train=16", "data.num_val=8", f"data.image_size={size}"]
    model = ["model=torchvision", f"model.name={name}", "optimizer.lr=0.0001", "data.batch_size=8"]
    transforms = f"[{{name: resize, size: {size}, crop_fraction: 0.875}}, {{name: center_crop, size: {size}}}]"
    more = [f"data.eval_transforms={transforms}", "trainer.epochs=1", f"output_dir={place / 'outputs'}"]
    return runner.fit(runner.load_config([*data, *model, *more])).run_dir / "model"


def ours(model: Path, port: int) -> list[str]:
    argv = [f"model={model}", f"serve.port={port}", "serve.precision=fp32"]
    return [sys.executable, "-m", "runner", "serve", *argv]


def without_folders(command: Sequence[str]) -> str:
    """A command without the folders of this machine."""
    words = ("python" if "python" in Path(word).name else word for word in command)
    return " ".join(re.sub(r"/\S*/", "…/", word) for word in words)


def compare_sides(model: Path, options: Any, seconds: float) -> None:  # noqa: ANN401 - argparse's own
    requests = [request_of(image) for image in make_images()]
    commands: dict[str, Callable[[int], Sequence[str]]] = {"serve": partial(ours, model)}
    if options.peers:
        bare, lit = (str(PEERS / f"{name}_server.py") for name in ("bare", "litserve"))
        commands["FastAPI"] = lambda port: [options.peers, bare, str(model), str(port)]
        commands["LitServe"] = lambda port: [options.peers, lit, str(model), str(port), "32"]
    sides = [
        Side(name=name, measure=partial(figures, command, requests, seconds), command=without_folders(command(0)))
        for name, command in commands.items()
    ]
    measured = compare(sides, repeats_of(options))
    ratios = {
        f"{name}_{num_clients}": _ratio(measured, name, num_clients)
        for name in commands
        if name != "serve"
        for num_clients in CLIENTS
    }
    missing = {} if options.peers else {"FastAPI, LitServe": "no --peers PYTHON"}
    work = f"{options.model}, {options.image_size} px, fp32, JPEGs of 500×375 in forms, clients on the same cores"
    record("serve_load", measured, ratios, small=options.small, work=work, not_measured=missing)


def _ratio(measured: dict[str, Measured], name: str, num_clients: int) -> float:
    figure = f"requests_per_second_{num_clients}"
    return measured["serve"].median(figure) / measured[name].median(figure)


def memory_mib(pid: int) -> float:
    """Proportional memory of a server and its workers, in MiB."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    texts = [Path(f"/proc/{one}/smaps_rollup").read_text() for one in (pid, *children)]
    return sum(float(text.partition("\nPss:")[2].split()[0]) for text in texts) / 1024


async def soak(port: int, process: subprocess.Popen[bytes], _: Path, num_requests: int) -> dict[str, float]:
    """Ask, and compare each answer with that to the same image asked alone."""
    images, counts, numbers = make_images(), Counter[str](), iter(range(num_requests))
    first = Client(port)
    expected = [json.loads((await first.ask(request_of(image))).body) for image in images]
    first.close()
    memory: dict[str, float] = {}

    async def go_on() -> None:
        client = Client(port)
        for number in numbers:
            if number == num_requests // 10:
                memory["tenth"] = memory_mib(process.pid)
            if number % 100 == 99:
                content, status = HOSTILE[number // 100 % len(HOSTILE)]
                counts["hostile"] += 1
                counts["wrong"] += (await client.ask(request_of(content))).status != status
                continue
            response = await client.ask(request_of(images[number % NUM_IMAGES]))
            counts["lost"] += response.status != 200
            counts["wrong"] += response.status == 200 and not _agrees(response.body, expected[number % NUM_IMAGES])
        client.close()

    await asyncio.gather(*(go_on() for _ in range(16)))
    kinds = {name: float(counts[name]) for name in ("hostile", "lost", "wrong")}
    return {**kinds, "tenth_mib": memory["tenth"], "end_mib": memory_mib(process.pid)}


def _agrees(body: bytes, expected: dict[str, Any]) -> bool:
    """Batches of another composition round otherwise; the label must be the same."""
    found = json.loads(body)
    shares, others = found["probabilities"], expected["probabilities"]
    is_near = all(abs(shares[name] - others[name]) < 1e-4 for name in others)
    return bool(found["label"] == expected["label"] and is_near and found["model"] == expected["model"])


def change(model: Path, number: int) -> None:
    """Another version in the same folder."""
    import safetensors.torch  # noqa: PLC0415 - torch, for this only
    import torch  # noqa: PLC0415

    weights = safetensors.torch.load_file(model / "model.safetensors")
    name = next(name for name in reversed(weights) if name.endswith("bias"))
    weights[name] = torch.full_like(weights[name], number / 1000)
    safetensors.torch.save_file(weights, model / "model.safetensors")
    card = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps({**card, "weights_sha256": sha256_of(model / "model.safetensors")}))


async def swap(port: int, process: subprocess.Popen[bytes], model: Path, num_swaps: int) -> dict[str, float]:
    """Swap under load of 8 clients, each swap once the one before is served."""
    request, is_over = request_of(make_images()[0]), asyncio.Event()
    answers: dict[str, set[str]] = {}
    counts = Counter[str]()

    async def go_on() -> None:
        client = Client(port)
        while not is_over.is_set():
            response = await client.ask(request)
            counts["requests"] += 1
            counts["lost"] += response.status != 200
            if response.status == 200:
                found = json.loads(response.body)
                answers.setdefault(found["model"]["version"], set()).add(found["label"])
        client.close()

    clients = [asyncio.create_task(go_on()) for _ in range(8)]
    for number in range(num_swaps):
        await asyncio.to_thread(change, model, number)
        wanted = sha256_of(model / "model.safetensors")[:12]
        process.send_signal(signal.SIGHUP)
        while wanted not in answers:
            await asyncio.sleep(0.1)
            for client in clients:
                if client.done():
                    client.result()
    is_over.set()
    await asyncio.gather(*clients)
    return {"requests": counts["requests"], "lost": counts["lost"], "versions": len(answers)}


async def slow(port: int, process: subprocess.Popen[bytes], _: Path, num_clients: int) -> dict[str, float]:
    """Ask without and then among clients that send a line of their head every few seconds."""
    request, is_over, closed = request_of(make_images()[0]), asyncio.Event(), Counter[str]()

    async def trickle(number: int) -> None:
        await asyncio.sleep(number * SLOW_SECONDS / num_clients)  # not all at once: that would be a flood
        while not is_over.is_set():
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"POST /score HTTP/1.1\r\nHost: x\r\n")
                while not reader.at_eof() and not is_over.is_set():
                    writer.write(b"X-Slow: 1\r\n")
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(1), SLOW_SECONDS)
                writer.close()
                closed["closed"] += not is_over.is_set()
            await asyncio.sleep(SLOW_SECONDS)

    async def ask_for(seconds: float) -> list[float]:
        found: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            client = Client(port)  # on a new connection each time, as strangers come
            response = await client.ask(request)
            client.close()
            found.append(response.seconds if response.status == 200 else math.inf)
        return found

    alone = await ask_for(SLOW_SECONDS)
    clients = [asyncio.create_task(trickle(number)) for number in range(num_clients)]
    await asyncio.sleep(2 * SLOW_SECONDS)
    among = await ask_for(4 * SLOW_SECONDS)
    memory = memory_mib(process.pid)
    is_over.set()
    await asyncio.gather(*clients)
    counted = {"requests": len(among), "lost": among.count(math.inf), "slow_closed": closed["closed"]}
    return {**counted, **_milliseconds("alone", alone), **_milliseconds("among", among), "end_mib": memory}


def _milliseconds(name: str, seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles([one * 1000 for one in seconds], n=100)
    return {f"p{part}_milliseconds_{name}": cuts[part - 1] for part in (50, 99)}


MODES: dict[str, tuple[str, Callable[..., Coroutine[Any, Any, dict[str, float]]]]] = {
    "soak": ("{:,} requests of 16 clients, 1% hostile", soak),
    "swaps": ("{:,} versions, 8 clients", swap),
    "slow": ("a client beside {:,} that never finish their request", slow),
}
"""By option: what is done with its number, in words, and the figures of a server to which it is done."""


def run_mode(name: str, model: Path, options: Any) -> None:  # noqa: ANN401 - argparse's own
    words, measure = MODES[name]
    number = getattr(options, name)

    def once() -> dict[str, float]:
        port = free_port()
        with server(ours(model, port)) as process:
            wait_until_ready(process, port)
            return asyncio.run(measure(port, process, model, number))

    side = Side(name="serve", measure=once, command=without_folders(ours(model, 0)))
    measured = compare([side], 1)
    found = {figure: measured["serve"].median(figure) for figure in measured["serve"].runs[0]}
    work = f"{options.model}, {options.image_size} px: {words.format(number)}"
    record(f"serve_load_{name}", measured, found, small=options.small, work=work)


def main() -> None:
    """Measure what was asked for."""
    arguments = parser(__doc__)
    arguments.add_argument("--peers", help="a Python with fastapi and litserve")
    arguments.add_argument("--model", default="resnet18")
    arguments.add_argument("--image-size", type=int, default=224)
    for name in MODES:
        arguments.add_argument(f"--{name}", type=int, metavar="N")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "birds" / "model"
        model.parent.mkdir()
        shutil.copytree(train(Path(folder), options.model, options.image_size), model)
        asked = [name for name in MODES if getattr(options, name)]
        for name in asked:
            run_mode(name, model, options)
        if not asked:
            compare_sides(model, options, 2.0 if options.small else 20.0)


if __name__ == "__main__":
    main()
