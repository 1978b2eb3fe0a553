"""`python -m runner serve model=DIR [serve.port=8080]`: answer requests with a packaged model."""

from __future__ import annotations

import importlib.util

from runner.base.errors import EXIT_DONE, EXIT_FAILURE, Extra, MissingPackageError, how_to_install
from runner.base.stop import StopRequest
from runner.cli.call import read_own
from runner.config.schema.calls.of_serving import ServeCall

_PACKAGES = ("starlette", "uvicorn", "httptools", "python_multipart", "prometheus_client")
_PACKAGES_OF_ONNX = ("onnx", "onnxscript", "onnxruntime")


def run(argv: list[str]) -> int:
    """Serve until SIGTERM or SIGINT. A server ends no other way, so this is exit code 0: nothing is left to resume.

    Returns:
        1 where requests that were accepted could not be answered within serve.drain_seconds.

    Raises:
        CheckpointError: there is no packaged model, or it is damaged.
        ConfigError: a value is wrong or missing.
        MissingPackageError: the extra `serve` is not installed, or `export` for serve.format=onnx.
        ServeError: the address can't be listened at, or a worker can't be started.
    """
    with StopRequest() as stop:
        call = read_own("serve", ServeCall, argv)
        _require(_PACKAGES, "serve", "serve")
        if call.serve.format == "onnx":
            _require(_PACKAGES_OF_ONNX, "serve.format=onnx", "export")
        from runner.tools.serve.run_server import serve  # noqa: PLC0415 - an extra

        return EXIT_DONE if serve(call, stop) else EXIT_FAILURE


def _require(packages: tuple[str, ...], what: str, extra: Extra) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        listed = ", ".join(name.replace("_", "-") for name in missing)
        verb = "is" if len(missing) == 1 else "are"
        raise MissingPackageError(f"{what} needs {listed}, which {verb} not installed: {how_to_install(extra)}")
