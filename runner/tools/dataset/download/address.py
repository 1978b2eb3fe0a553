"""Sends an HTTP request: http and https only, few redirects, the proxies of the environment, errors as sentences."""

from __future__ import annotations

import base64
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import IO
from urllib.parse import quote, unquote, urlsplit

from runner.base.errors import DownloadError
from runner.base.reasons import reason_of
from runner.base.untrusted import printable

TIMEOUT_SECONDS = 30.0
"""Of silence."""
_REDIRECTS = range(300, 400)


@dataclass(frozen=True, kw_only=True)
class Address:
    """An http(s) URL, split into what is requested and what may be shown and saved."""

    url: str
    """Without user information."""
    shown: str
    """Without user information and query, which may contain passwords and signatures."""
    authorization: str | None
    """The value of the header Authorization, if user information was typed."""


class RangeError(Exception):
    """The server's file has no such range (status 416)."""


def address_of(text: str) -> Address:
    """Split an address that the schema has validated."""
    parts = urlsplit(text.strip())
    host = parts.netloc.rpartition("@")[2]
    authorization = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    # Spaces and letters beyond ASCII as browsers send them; what is quoted already stays.
    path, query = (quote(part, safe="!$%&'()*+,/:;=?@[]~") for part in (parts.path, parts.query))
    url = parts._replace(netloc=host, path=path, query=query, fragment="").geturl()
    return Address(url=url, shown=f"{parts.scheme}://{host}{parts.path}", authorization=authorization)


def open_address(address: Address, headers: Mapping[str, str]) -> HTTPResponse:
    """Send a GET request.

    Raises:
        DownloadError: the request failed, or the status is an error.
        RangeError: the file has not the range that the headers request.
    """
    request = urllib.request.Request(address.url, headers=dict(headers))
    if address.authorization is not None:
        # Not sent to a server to which this one redirects.
        request.add_unredirected_header("Authorization", address.authorization)
    try:
        response = _opener(address).open(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and "Range" in headers:
            raise RangeError from error
        reason = _status_text(error.code)
    except urllib.error.URLError as error:
        reason = _reason_text(error.reason)
    except (OSError, HTTPException, ValueError) as error:
        reason = _reason_text(error)
    else:
        assert isinstance(response, HTTPResponse)
        return response
    raise DownloadError(f"input = {address.shown}: {reason}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a few redirects, but none from https to another scheme."""

    max_redirections = 5
    max_repeats = 2

    def __init__(self, address: Address) -> None:
        self._address = address

    def redirect_request(  # noqa: PLR0917 - urllib's
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """The request that follows a redirect."""
        to = urlsplit(newurl)
        if to.scheme.lower() != "https" and not (to.scheme.lower() == "http" == urlsplit(req.full_url).scheme.lower()):
            raise DownloadError(
                f"input = {self._address.shown}: the server redirects to {printable(to.scheme)}://…, where others on "
                "the network could replace the file; redirects from https are followed to https only; ask the "
                "publisher for another address"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(address: Address) -> urllib.request.OpenerDirector:
    """An opener without the handlers for file, ftp and data that urllib adds by default."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
        _Redirects(address),
    ):
        opener.add_handler(handler)
    return opener


def _status_text(code: int) -> str:
    if code in _REDIRECTS:
        return f"too many redirects, or one to another scheme than http and https ({code}); is the address right?"
    text = f"the server answered {code}"
    if code in http.client.responses:
        text += f" ({http.client.responses[code]})"
    match code:
        case 401 | 403:
            return f"{text}; it requires a login (https://USER:PASSWORD@…) or a new link"
        case 404 | 410:
            return f"{text}; there is nothing at this address: is it right?"
        case 407:
            return f"{text}; the proxy requires a login: set https_proxy=http://USER:PASSWORD@HOST:PORT"
        case 408 | 425 | 429 | 500 | 502 | 503 | 504:
            return f"{text}; try again later"
        case _:
            return f"{text}; is the address right?"


def _reason_text(reason: object) -> str:
    match reason:
        case ssl.SSLCertVerificationError():
            return (
                f"the certificate of the server is not trusted ({reason.verify_message}); is the address right? If "
                "your network has its own certificate authority: SSL_CERT_FILE=FILE.pem"
            )
        case ssl.SSLError():
            return f"no secure connection with the server ({reason.reason or 'TLS failed'}); is the address right?"
        case TimeoutError():
            return f"the server did not answer within {TIMEOUT_SECONDS:g} seconds; try again later"
        case OSError():
            return f"the server can't be reached ({reason_of(reason)}); is the address right, and the network up?"
        case _:
            return f"the answer can't be understood ({type(reason).__name__}); is the address right?"
