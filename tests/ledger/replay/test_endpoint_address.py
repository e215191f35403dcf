"""What is taken as a server's address and as patience with it, and what is said where httpx is missing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pinprobe.ledger.replay.endpoint import KEY_VARIABLE, Endpoint, Patience
from pinprobe.probes.errors import BadRequest

pytest.importorskip("httpx", reason='driving an endpoint needs httpx: pip install "pinprobe[endpoint]"')


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("given_url", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        (" HTTP://Host:8000/ ", "http://host:8000"),
        ("https://host/v1", "https://host"),
        ("http://host/engines/a/v1/", "http://host/engines/a"),
        ("http://host/v1/chat/completions", "http://host"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
    ],
)
def test_an_address_is_what_stands_before_v1(given_url: str, url: str) -> None:
    with Endpoint(given_url) as endpoint:
        assert endpoint.url == url


@pytest.mark.parametrize(
    "url",
    ["", "host:8000", "127.0.0.1:8000", "ftp://host", "http://", "http://host:99999", "http://host:0", "http://host:x",
     "http://ho st", "http://ho\nst", "http://h\x00st", "http://[::1", "http://host/?a=b", "http://host/#a", "http:///v1",
     "http://\ud800", "file:///etc/passwd", "http://" + "a" * 70_000],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(BadRequest) as caught:
        Endpoint(url)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def test_an_address_with_a_password_is_refused_without_telling_it() -> None:
    with pytest.raises(BadRequest, match=KEY_VARIABLE) as caught:
        Endpoint("http://me:geheim@host:8000")
    assert "geheim" not in str(caught.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=30) | st.text(max_size=20).map("http://".__add__))
@example("http://\u2100.example")
@example("http://%zz@")
def test_any_text_is_an_address_or_a_bad_request(url: str) -> None:
    try:
        Endpoint(url).close()
    except BadRequest as error:
        if not str(error).isprintable():
            raise


@pytest.mark.parametrize("name", ["connect_seconds", "idle_seconds", "total_seconds"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_patience_without_end_is_refused(name: str, value: float) -> None:
    with pytest.raises(BadRequest, match=name):
        Patience(**{name: value})


def test_without_httpx_it_is_said_what_to_install() -> None:
    code = (
        "import sys; sys.modules['httpx'] = None\n"
        "from pinprobe.ledger.replay.endpoint import Endpoint\n"
        "from pinprobe.probes.errors import BadRequest\n"
        "try:\n    Endpoint('http://host')\nexcept BadRequest as error:\n    print(error)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == 'driving an endpoint needs httpx: pip install "pinprobe[endpoint]"\n'
