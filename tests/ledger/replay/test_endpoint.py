"""One request to a real server on this host: what is measured of it, and that nothing a server does is a traceback."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinprobe.ledger.replay.endpoint import KEY_VARIABLE, Endpoint, Patience
from pinprobe.ledger.replay.endpoint_answer import Answer, EndpointFault
from pinprobe.probes.errors import BadRequest
from pinprobe.probes.reading import Unreadable
from tests.ledger.replay.scripted_server import Play, ScriptedServer

pytest.importorskip("httpx", reason='driving an endpoint needs httpx: pip install "pinprobe[endpoint]"')

HELLO = [{"role": "user", "content": "hello there"}]
KEY = "sk-very-secret-0123456789"
#: Far more than any test takes.
PATIENCE = Patience(connect_seconds=5, idle_seconds=20, total_seconds=30)
IMPATIENT = Patience(connect_seconds=5, idle_seconds=0.3, total_seconds=30)


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 2  # timers that were cancelled end a moment later
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before


def ask(server: ScriptedServer, patience: Patience = PATIENCE, max_tokens: int = 50) -> Answer:
    with Endpoint(server.url, patience) as endpoint:
        return endpoint.ask("m", HELLO, max_tokens)


def fault_of(play: Play, patience: Patience = PATIENCE) -> EndpointFault:
    """Ask a server that plays this, and return what is raised; one printable line that begins with the address."""
    with ScriptedServer(lambda number, body: play) as server:
        with pytest.raises(EndpointFault) as caught:
            ask(server, patience)
        fault = caught.value
        assert str(fault) == f"{server.url}: {fault.what}"
    assert fault.what.isprintable()
    assert len(fault.what) < 600
    assert not fault.is_stopped
    return fault


# -- what is measured


def test_the_first_token_is_timed_be_it_reasoning_or_text() -> None:
    for play in (Play(first_seconds=0.15, piece_seconds=0.02), Play(first_seconds=0.15, reasoning_tokens=4)):
        with ScriptedServer(lambda number, body, play=play: play) as server:  # type: ignore[misc]
            answer = ask(server)
            seen = server.chats[0]
        assert seen.first_piece_seconds >= 0.15
        assert seen.first_piece_seconds <= answer.ttft_seconds < seen.first_piece_seconds + 1
        assert seen.last_piece_seconds <= answer.last_token_seconds < seen.last_piece_seconds + 1
        assert answer.ttft_seconds <= answer.last_token_seconds <= answer.seconds


def test_the_rate_is_of_the_tokens_after_the_first() -> None:
    with ScriptedServer(lambda number, body: Play(tokens=6, first_seconds=0.2, piece_seconds=0.05)) as server:
        rate = ask(server).tokens_a_second
        seen = server.chats[0]
    assert isinstance(rate, float)
    assert rate == pytest.approx(5 / (seen.last_piece_seconds - seen.first_piece_seconds), rel=0.5)


def test_the_request_is_what_a_server_expects() -> None:
    with ScriptedServer() as server:
        ask(server, max_tokens=123)
    assert server.chats[0].body == {
        "model": "m", "messages": HELLO, "max_tokens": 123, "temperature": 0.0,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    headers = server.chats[0].headers
    assert headers["Content-Type"] == "application/json"
    assert headers["Accept-Encoding"] == "identity"
    assert "Authorization" not in headers


def test_a_temperature_can_be_left_to_the_server() -> None:
    with ScriptedServer() as server, Endpoint(server.url, PATIENCE) as endpoint:
        endpoint.ask("m", HELLO, 5, temperature=None)
    assert "temperature" not in server.chats[0].body


def test_cached_tokens_are_what_the_server_says_and_unknown_where_it_says_nothing() -> None:
    plays = [Play(), Play(), Play(has_details=False), Play(leaves_out_zero=True)]
    long = [{"role": "user", "content": "word " * 100}]
    with ScriptedServer(lambda number, body: plays[number - 1]) as server, Endpoint(server.url, PATIENCE) as endpoint:
        cold, warm, silent = (endpoint.ask("m", long, 5) for _ in range(3))
        left_out = endpoint.ask("m", [{"role": "user", "content": "other " * 100}], 5)
    assert [seen.cached_tokens for seen in server.chats] == [0, 96, 96, 0]
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 96)
    assert cold.prompt_tokens == warm.prompt_tokens == 101
    assert isinstance(silent.cached_tokens, Unreadable)
    assert isinstance(left_out.cached_tokens, Unreadable)


def test_models_are_listed_in_the_servers_order() -> None:
    with ScriptedServer() as server, Endpoint(f"{server.url}/v1/", PATIENCE) as endpoint:
        assert endpoint.models() == ("scripted-model", "an-adapter")
    assert [seen.path for seen in server.seen] == ["/v1/models"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"data": {}}', b'{"data": [{}, 1, {"id": 5}]}', b"\xff", b"[" * 9999]
)
def test_a_server_that_names_no_model_is_told(body: bytes) -> None:
    with (
        ScriptedServer(models=body) as server,
        Endpoint(server.url, PATIENCE) as endpoint,
        pytest.raises(EndpointFault, match="give the model's name"),
    ):
        endpoint.models()


# -- what goes wrong


@pytest.mark.parametrize(
    ("play", "word"),
    [
        (Play(status=400, body=b'{"error": {"message": "over the window"}}'), "HTTP 400: over the window"),
        (Play(status=400, body=b'{"detail": [{"msg": "bad"}]}'), "HTTP 400: "),
        (Play(status=401, body=b""), f"HTTP 401: Unauthorized: the server wants a key; give it in {KEY_VARIABLE}"),
        (Play(status=404, body=b'{"message": "no such model"}'), "HTTP 404: no such model: is this the address"),
        (Play(status=500, body=b"<html>\n<b>oops</b>\x1b[31m"), "HTTP 500: <html> <b>oops</b>?[31m"),
        (Play(status=503, body=b'"queue full"'), 'HTTP 503: "queue full": the server is full'),
        (Play(status=500, body=b"[" * 60_000), "HTTP 500: [["),
        (Play(status=500, body=b'{"error": ' * 5_000), "HTTP 500: "),
        (Play(status=500, body=b"x" * 1_000_000), "HTTP 500: xxx"),
        (Play(status=204, body=b""), "HTTP 204"),
        (Play(cut_after=0), "connection was cut"),
        (Play(cut_after=3), "connection was cut"),
        (Play(has_finish=False, has_done=False), "came: 8"),
        (Play(tokens=0), "no token"),
        (Play(body=b"data: nonsense\n\n"), "no JSON: nonsense"),
        (Play(body=b"\x00\xff" * 5000), "came: 0"),
        (Play(body=b"x" * 2_000_000), "no end within 1,048,576 B"),
        (Play(body=b'{"choices": []}', content_type="application/json"), "application/json and no stream"),
        (Play(encoding="gzip", body=b"\x1f\x8b\x08"), "compresses"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_told_in_one_line(play: Play, word: str) -> None:
    assert word in fault_of(play).what


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\ndata: 1\n\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFFFFFF\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: \xff\xfe\x80\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 999 \xff\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000,
        bytes(range(256)) * 8,
    ],
)
def test_what_is_no_http_is_told_in_one_line(raw: bytes) -> None:
    fault_of(Play(raw=raw), IMPATIENT)


_WIRE = [
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 301 x\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Encoding: br\r\n",
    b"Content-Length: 9\r\n", b"\r\n", b"5\r\n", b"0\r\n", b"data: {}\n\n", b"[DONE]",
]  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(_WIRE) | st.binary(max_size=6), max_size=8))
def test_any_bytes_on_the_wire_are_an_answer_or_a_fault(lines: list[bytes]) -> None:
    play = Play(raw=b"HTTP/1.1 200 OK\r\n" + b"".join(lines))
    with ScriptedServer(lambda number, body: play) as server:
        try:
            ask(server, IMPATIENT)
        except EndpointFault as fault:
            if not fault.what.isprintable():
                raise


def test_a_server_that_is_not_there_is_told_with_the_question_to_ask() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with Endpoint(url, PATIENCE) as endpoint, pytest.raises(EndpointFault, match="is the server up") as caught:
            endpoint.ask("m", HELLO, 5)
    assert "refused" in str(caught.value)


def test_a_host_that_has_no_address_is_told() -> None:
    with Endpoint("http://no-such-host.invalid", PATIENCE) as endpoint, pytest.raises(EndpointFault):
        endpoint.models()


def test_a_silent_server_is_waited_for_so_long_and_no_longer() -> None:
    for play in (Play(first_seconds=60), Play(tokens=2, piece_seconds=60)):
        begun = time.monotonic()
        assert "nothing was heard for 0.3 s" in fault_of(play, IMPATIENT).what
        assert 0.3 <= time.monotonic() - begun < 3


@pytest.mark.parametrize(
    "play",
    [
        Play(raw=b"HTTP/1.1 200 OK\r\nX-Header: " + b"x" * 1000, drip_seconds=0.05),
        Play(body=b": a remark\n" * 1000, drip_seconds=0.05),
        Play(tokens=1000, piece_seconds=0.05),
        Play(first_seconds=60),
    ],
    ids=["header", "remarks", "tokens", "silence"],
)
def test_a_server_that_sends_a_byte_now_and_then_is_not_waited_for_for_ever(play: Play) -> None:
    begun = time.monotonic()
    fault = fault_of(play, Patience(connect_seconds=5, idle_seconds=20, total_seconds=0.3))
    assert fault.what == "not answered to its end within 0.3 s"
    assert 0.3 <= time.monotonic() - begun < 3


def test_a_stop_from_another_thread_ends_what_is_under_way_and_all_that_comes() -> None:
    with (
        ScriptedServer(lambda number, body: Play(first_seconds=60)) as server,
        Endpoint(server.url, PATIENCE) as endpoint,
    ):
        threading.Timer(0.2, endpoint.stop).start()
        begun = time.monotonic()
        for _ in range(2):
            with pytest.raises(EndpointFault) as caught:
                endpoint.ask("m", HELLO, 5)
            assert caught.value.is_stopped
        assert time.monotonic() - begun < 3


# -- where it goes, and with what


def test_a_redirect_is_named_and_not_followed() -> None:
    with ScriptedServer() as other:
        play = Play(status=307, location=f"{other.url}/v1/chat/completions")
        assert f"redirects to {other.url}/v1/chat/completions" in fault_of(play).what
        assert other.seen == []


def test_proxies_in_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with ScriptedServer() as server:
        assert ask(server).content


def test_a_key_comes_from_the_environment_and_goes_to_the_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    echo = Play(status=401, body=f'{{"error": {{"message": "wrong key: {KEY}"}}}}'.encode())
    monkeypatch.setenv("MY_KEY", f"{KEY}\n")
    monkeypatch.setenv(KEY_VARIABLE, "another")
    with ScriptedServer(lambda number, body: echo) as server, Endpoint(server.url, PATIENCE, "MY_KEY") as endpoint:
        with pytest.raises(EndpointFault) as caught:
            endpoint.ask("m", HELLO, 5)
        assert KEY not in repr(vars(caught.value)) + str(caught.value)
        assert "wrong key: (the key)" in str(caught.value)
    assert server.chats[0].headers["Authorization"] == f"Bearer {KEY}"


def test_the_usual_variable_is_looked_at_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with ScriptedServer() as server:
        ask(server)
    assert server.chats[0].headers["Authorization"] == f"Bearer {KEY}"


def test_a_key_that_is_none_is_refused_and_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match="no key in the environment variable MY_KEY"):
        Endpoint("http://127.0.0.1:1", key_variable="MY_KEY")
    for key in ("two words", "a\nb", "schl\u00fcssel"):
        monkeypatch.setenv("MY_KEY", key)
        with pytest.raises(BadRequest, match="printable ASCII") as caught:
            Endpoint("http://127.0.0.1:1", key_variable="MY_KEY")
        assert key not in str(caught.value)


# -- TLS


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate that no system trusts, and a server's context with it."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    paths = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(paths[0]),
         "-out", str(paths[1])], check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(paths[1], paths[0])
    return paths[1], context


def test_a_certificate_that_nobody_trusts_is_refused_in_one_line(certificate: tuple[Path, ssl.SSLContext]) -> None:
    with ScriptedServer(tls=certificate[1]) as server, pytest.raises(EndpointFault, match="certificate") as caught:
        ask(server)
    assert str(caught.value).isprintable()
    assert server.seen == []


def test_a_certificate_that_the_system_trusts_is_taken_and_its_line_can_be_cut(
    certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    plays = [Play(), Play(first_seconds=60)]
    with ScriptedServer(lambda number, body: plays[number - 1], tls=certificate[1]) as server:
        assert ask(server).content
        begun = time.monotonic()
        with pytest.raises(EndpointFault, match="not answered to its end"):
            ask(server, Patience(connect_seconds=5, idle_seconds=20, total_seconds=0.4))
        assert time.monotonic() - begun < 3
