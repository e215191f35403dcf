"""A client for one OpenAI-compatible server, which measures each answer while it streams."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pinprobe.ledger.replay.endpoint_answer import Answer, AnswerReader, EndpointFault, one_line, remark_of
from pinprobe.ledger.replay.endpoint_line import Line
from pinprobe.probes.errors import BadRequest, printable

if TYPE_CHECKING:
    import httpx

#: Where the server's key is looked for, unless another variable is named.
KEY_VARIABLE = "PINPROBE_API_KEY"

_MOST_ERROR_BYTES = 2**16
_MOST_MODELS_BYTES = 4 * 2**20
_MOST_SECONDS = 7 * 24 * 3600.0
_NEXT = {
    401: f"the server wants a key; give it in {KEY_VARIABLE}, or name its variable",
    403: f"the server wants another key than the one in {KEY_VARIABLE}, or in the variable that was named",
    404: "is this the address before /v1, and does the server have this model?",
    503: "the server is full or not ready",
}


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a request may take: to connect, with nothing heard, and in all.

    What a server sends for its first token counts as being heard, so `idle_seconds` has to outlast the longest prefill
    and the wait for a place before it.
    """

    connect_seconds: float = 10.0
    idle_seconds: float = 120.0
    total_seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in ("connect_seconds", "idle_seconds", "total_seconds"):
            value = getattr(self, name)
            if not 0 < value <= _MOST_SECONDS:
                raise BadRequest(f"{name} is {value:g}; give more than 0 and at most {_MOST_SECONDS:g} (a week)")


class Endpoint:
    """Asks a server at `url`, which is what stands before `/v1`.

    `key_variable` names the environment variable that holds the server's key; where it is None, `PINPROBE_API_KEY` is
    looked at, and a server that wants no key gets none. The key is sent to this server alone and told nowhere. Proxies
    in the environment are ignored and redirects are not followed: what is measured is this server.

    Any thread may ask, several at a time. Each request has a connection of its own, whose making is part of its time:
    servers drop idle connections within a think time, and a request sent into a dropped one would count as an error.

    Raises `BadRequest` where the address or the key can't be used, or httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        patience: Patience | None = None,
        key_variable: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        httpx = _load_httpx()
        self.url = _checked_url(url, httpx)
        self.patience = patience or Patience()
        self._key = _key(key_variable)
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: set[Line] = set()
        self._is_stopped = False
        headers = {"Accept-Encoding": "identity", "Connection": "close"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._client = httpx.Client(
            headers=headers,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(self.patience.idle_seconds, connect=self.patience.connect_seconds, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            **_tls(self.url),
        )

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def models(self) -> tuple[str, ...]:
        """Ask which models there are, in the server's order. Raises `EndpointFault` where it names none."""
        with self._reply("GET", "/v1/models", None) as (response, _):
            body = _json(_some(response, _MOST_MODELS_BYTES))
        listed = body.get("data") if isinstance(body, Mapping) else None
        entries = listed if isinstance(listed, list) else []
        names = tuple(entry["id"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str))
        if not names:
            raise EndpointFault("/v1/models names no model; give the model's name", self.url)
        return names

    def ask(
        self,
        model: str,
        messages: Sequence[Mapping[str, str]],
        max_tokens: int,
        temperature: float | None = 0.0,
    ) -> Answer:
        """Send a conversation and read its answer to the end. Raises `EndpointFault` where there is none.

        At `temperature` 0 the same conversation is answered alike wherever arms are compared; None leaves it out.
        """
        body: dict[str, Any] = {
            "model": model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if temperature is not None:
            body["temperature"] = temperature
        reader = AnswerReader()
        with self._reply("POST", "/v1/chat/completions", json.dumps(body).encode()) as (response, begun):
            form = response.headers.get("content-type", "")
            if form and not form.lower().startswith("text/event-stream"):
                text = self._without_key(_some(response, _MOST_ERROR_BYTES).decode("utf-8", "replace"))
                raise EndpointFault(f"the answer is {one_line(form)} and no stream: {one_line(text)}")
            for piece in response.iter_raw():
                reader.read(piece, self._clock() - begun)
                if reader.is_done:
                    break
            return reader.finish(self._clock() - begun)

    def stop(self) -> None:
        """End all requests at once; they and all later ones raise an `EndpointFault` that is `is_stopped`."""
        with self._lock:
            self._is_stopped = True
            lines = list(self._lines)
        for line in lines:
            line.cut("stopped")

    def close(self) -> None:
        """Stop, and let go of what the client holds; once more does nothing."""
        self.stop()
        self._client.close()

    @contextlib.contextmanager
    def _reply(self, method: str, path: str, body: bytes | None) -> Iterator[tuple[httpx.Response, float]]:
        """Send a request and yield its response and when it was sent, or raise what went wrong at whatever moment."""
        import httpx

        headers = {"Content-Type": "application/json"} if body is not None else {}
        with Line(self.patience.total_seconds) as line:
            with self._lock:
                self._lines.add(line)
                if self._is_stopped:
                    line.cut("stopped")
            try:
                if line.reason:
                    raise EndpointFault(line.reason)
                begun = self._clock()
                with self._client.stream(
                    method, self.url + path, content=body, headers=headers, extensions={"trace": line.trace}
                ) as response:
                    self._check_response(response)
                    yield response, begun
            except (EndpointFault, httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError, ValueError) as error:
                # What a cut breaks looks like a fault of the server, so the line's own word goes first.
                what = line.reason or (error.what if isinstance(error, EndpointFault) else self._told(error))
                raise EndpointFault(self._without_key(what), self.url, is_stopped=line.reason == "stopped") from None
            finally:
                with self._lock:
                    self._lines.discard(line)

    def _check_response(self, response: httpx.Response) -> None:
        if response.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            raise EndpointFault("the server compresses what was asked for uncompressed; turn that off for this address")
        if response.status_code == 200:
            return
        status = f"HTTP {response.status_code}"
        if response.has_redirect_location:
            target = one_line(response.headers["location"])
            raise EndpointFault(f"{status}: it redirects to {target}, which is not followed; give that address")
        text = self._without_key(_some(response, _MOST_ERROR_BYTES).decode("utf-8", "replace"))
        body = _json(text.encode())
        remark = remark_of(body) if isinstance(body, Mapping) else one_line(text)
        parts = [status, remark or one_line(response.reason_phrase)]
        raise EndpointFault(": ".join(filter(None, [*parts, _NEXT.get(response.status_code, "")])))

    def _told(self, error: Exception) -> str:
        import httpx

        patience = self.patience
        if isinstance(error, httpx.ConnectTimeout):
            return f"no connection within {patience.connect_seconds:g} s; is the server up, and is this its address?"
        if isinstance(error, httpx.ConnectError):
            return f"no connection: {one_line(str(error))}; is the server up, and is this its address?"
        if isinstance(error, httpx.TimeoutException):
            return f"nothing was heard for {patience.idle_seconds:g} s; wait longer, or see what the server is doing"
        if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError):
            return f"the connection was cut: {one_line(str(error)) or type(error).__name__}"
        return f"{type(error).__name__}: {one_line(str(error))}"

    def _without_key(self, text: str) -> str:
        # Some servers send a wrong key back.
        return text.replace(self._key, "(the key)") if self._key else text


def _load_httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise BadRequest('driving an endpoint needs httpx: pip install "pinprobe[endpoint]"') from None
    return httpx


def _tls(url: str) -> dict[str, Any]:
    """Trust whom this system trusts, and what SSL_CERT_FILE adds; a server without TLS needs no certificates read."""
    import ssl

    is_https = url.startswith("https:")
    return {"verify": ssl.create_default_context() if is_https else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}


def _checked_url(url: str, httpx: Any) -> str:
    shown = printable(url[:200])
    try:
        parsed = httpx.URL(url.strip())
        host, port = parsed.host, parsed.port
    except (httpx.InvalidURL, ValueError, TypeError) as error:
        raise BadRequest(f"{shown!r} is no address: {one_line(str(error))}; write http://host:8000") from None
    if parsed.userinfo:
        # Not shown: it would be told with every error.
        raise BadRequest(f"the address holds a user's name or password; leave it out and put a key in {KEY_VARIABLE}")
    if parsed.scheme not in ("http", "https") or not host or any(map(str.isspace, url.strip())):
        raise BadRequest(f"{shown!r} is no address of a server; write http://host:8000 or https://host")
    if port is not None and not 0 < port < 2**16:
        raise BadRequest(f"{shown!r} has port {port}, and ports end at 65535")
    if parsed.query or parsed.fragment:
        raise BadRequest(f"{shown!r} has more than an address in it; leave out what begins with ? or #")
    path = parsed.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1").rstrip("/")
    return str(parsed.copy_with(path=path or "/")).rstrip("/")


def _key(variable: str | None) -> str:
    name = KEY_VARIABLE if variable is None else variable
    key = os.environ.get(name, "").strip()
    if variable is not None and not key:
        raise BadRequest(f"there is no key in the environment variable {printable(variable)}; set it, or name another")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise BadRequest(f"what {printable(name)} holds is no key: a key is printable ASCII without spaces")
    return key


def _some(response: httpx.Response, most_bytes: int) -> bytes:
    """Read a body, or as much of it as is looked at."""
    found = bytearray()
    for piece in response.iter_raw():
        found += piece
        if len(found) >= most_bytes:
            break
    return bytes(found[:most_bytes])


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
