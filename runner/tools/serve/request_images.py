"""The images in a request: as the raw body, in a form, in JSON, or by the Open Inference Protocol."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException

from runner.base.untrusted import UntrustedFileError, parse_json

_FORM = "multipart/form-data"
_JSON = "application/json"
_RAW = ("", "application/octet-stream", "application/x-www-form-urlencoded")  # the last one is curl's --data-binary
_JSON_FORM = '{"image": "BASE64"} or {"images": ["BASE64", …]}'


class InferenceRequest(NamedTuple):
    """A request of the Open Inference Protocol, version 2."""

    id: str | None
    images: list[bytes]
    outputs: tuple[str, ...] | None
    """Names of the outputs that are asked for; None: all."""


def refusal(status: int, message: str) -> HTTPException:
    """An answer that refuses a request; the connection is closed, as the rest of the body may be unread."""
    return HTTPException(status, message, {"Connection": "close"})


def images_of(content_type: str, body: bytes, max_images: int) -> list[bytes]:
    """The image files in the body of `POST /score`.

    Raises:
        HTTPException: the body is not what its type says, or has no images or too many.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == _FORM:
        return _of_form(content_type, body, max_images)
    if kind == _JSON:
        return _checked(_of_json(_parsed(body)), max_images)
    if kind not in _RAW and not kind.startswith("image/"):
        raise refusal(415, f"send an image as the body, as {_FORM}, or {_JSON}: {_JSON_FORM}")
    return _checked([body] if body else [], max_images)


def _checked(images: list[bytes], max_images: int) -> list[bytes]:
    if not images:
        raise refusal(400, "there is no image in the request")
    if len(images) > max_images:
        raise _too_many(max_images)
    return images


def _too_many(max_images: int) -> HTTPException:
    return refusal(413, f"too many images; a request may have {max_images:,} (serve.max_images)")


def _of_form(content_type: str, body: bytes, max_images: int) -> list[bytes]:
    """Each part of a form is an image, whatever its name; nothing goes to a file."""
    images: list[bytearray] = []

    def begin() -> None:
        if len(images) >= max_images:
            raise _too_many(max_images)
        images.append(bytearray())

    def extend(data: bytes, start: int, end: int) -> None:
        images[-1] += data[start:end]

    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    is_complete: list[bool] = []
    try:
        parser = MultipartParser(
            boundary,
            {"on_part_begin": begin, "on_part_data": extend, "on_end": lambda: is_complete.append(True)},
        )
        parser.write(body)
        parser.finalize()
    except FormParserError:
        is_complete.clear()
    if not boundary or not is_complete:
        raise refusal(400, f"the body is no complete {_FORM}")
    return _checked([bytes(image) for image in images], max_images)


def _parsed(body: bytes) -> Any:  # noqa: ANN401 - whatever JSON can hold
    try:
        return parse_json(body.decode(), "the body")
    except (UnicodeDecodeError, UntrustedFileError):  # its message may show what was sent
        raise refusal(400, "the body is no JSON, or is nested too deep") from None


def _of_json(value: Any) -> list[bytes]:  # noqa: ANN401 - whatever JSON can hold
    match value:
        case {"image": str(text)} if len(value) == 1:
            return [_decoded(text)]
        case {"images": [*texts]} if len(value) == 1:
            return [_decoded(text) for text in texts]
        case _:
            raise refusal(400, f"the JSON must be {_JSON_FORM}")


def _decoded(text: object) -> bytes:
    if not isinstance(text, str):
        raise refusal(400, "an image in JSON must be a text in base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise refusal(400, "an image in JSON is not in base64") from None


def inference_request(body: bytes, num_json: int | None, max_images: int) -> InferenceRequest:
    """The images and what is asked for in the body of an inference request.

    One input of the type BYTES, of any name, with an image file as each element: in JSON as base64, or in the binary
    form of the protocol's extension, where each is preceded by its length (4 bytes, little-endian).

    Args:
        body: as received.
        num_json: the header Inference-Header-Content-Length: how many bytes of the body are JSON.
        max_images: in one request.

    Raises:
        HTTPException: the request is not of this form.
    """
    head = body if num_json is None else body[:num_json]
    match _parsed(head):
        case {"inputs": [{"datatype": "BYTES", "shape": [*shape], **tensor}], **request}:
            pass
        case _:
            raise refusal(400, 'expected one input: {"name": "image", "shape": [N], "datatype": "BYTES", …}')
    parameters = tensor.get("parameters")
    num_binary = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if num_binary is not None:
        images = _of_binary(body[len(head) :], num_binary)
    elif isinstance(data := tensor.get("data"), list):
        images = [_decoded(item) for item in data]
    else:
        raise refusal(400, "the input has no data: a list of texts in base64")
    if shape not in ([len(images)], [len(images), 1]):
        raise refusal(400, f"the input has {len(images)} images, which is not what its shape says")
    identity = request.get("id")
    return InferenceRequest(
        id=identity if isinstance(identity, str) else None,
        images=_checked(images, max_images),
        outputs=_asked_outputs(request.get("outputs")),
    )


def _of_binary(content: bytes, num_bytes: object) -> list[bytes]:
    images, start = [], 0
    if num_bytes != len(content):
        raise refusal(400, "binary_data_size is not the size of what follows the JSON")
    while start < len(content):
        size = int.from_bytes(content[start : start + 4], "little")
        image = content[start + 4 : start + 4 + size]
        if len(image) != size or start + 4 > len(content):
            raise refusal(400, "the binary data is cut off")
        images.append(image)
        start += 4 + size
    return images


def _asked_outputs(outputs: Any) -> tuple[str, ...] | None:  # noqa: ANN401 - whatever JSON can hold
    match outputs:
        case None | []:
            return None
        case [*items] if all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in items):
            return tuple(item["name"] for item in items)
        case _:
            raise refusal(400, "outputs must be a list of objects with a name")


def compact_json(value: dict[str, Any]) -> bytes:
    """An answer as JSON; texts in it are those of the package."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
