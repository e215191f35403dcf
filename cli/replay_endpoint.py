"""Drives live endpoints for `pinprobe replay --url`, one after the other."""

from __future__ import annotations

import secrets
from itertools import count

from pinprobe.cli.measuring import progress
from pinprobe.cli.options import Output
from pinprobe.cli.replay_options import ReplayOptions
from pinprobe.ledger.replay.do_no_harm import Incident, Turn, do_no_harm_rows
from pinprobe.ledger.replay.endpoint import Endpoint, Patience
from pinprobe.ledger.replay.endpoint_drive import drive_endpoint
from pinprobe.ledger.replay.replay_run import ReplayRun, Source
from pinprobe.ledger.replay.shape import Shape
from pinprobe.probes.errors import BadRequest, printable

# Drives whose prompts repeat the whole talk and grow evenly, which is what an endpoint is driven with.
_DRIVEN = ("linear", "short-turns")


def drive_endpoints(options: ReplayOptions, shape: Shape | None, output: Output) -> ReplayRun:
    """Drive every server, each replicate from a cold cache of its own, and put the turns into rows.

    Raises `BadRequest` where the drive is not one that a server can be driven with, or two servers have one name, and
    `CouldNotMeasure` where a server does not say which models it has.
    """
    if options.scenario not in _DRIVEN or shape is None:
        raise BadRequest(
            f"an endpoint can't be driven with the scenario {printable(options.scenario)}; give {' or '.join(_DRIVEN)}"
        )
    places = [_named(url) for url in options.urls]
    arms = [arm for arm, _ in places]
    if len(set(arms)) < len(arms):
        raise BadRequest("two servers have one name; write --url before=http://host:8000 --url after=http://host:8001")
    patience = _patience(options.timeout)
    turns: list[Turn] = []
    incidents: list[Incident] = []
    ended = None
    drives = count(1)

    def nonce() -> str:
        return secrets.token_hex(8) if options.nonce is None else f"{options.nonce}-{next(drives)}"

    replicates = options.replicates or 1
    total = replicates * shape.sessions * shape.turns
    models = [options.model or _first_model(url, patience) for _, url in places]  # all, before any is driven
    for (arm, url), model in zip(places, models, strict=True):
        done = count(1)
        with Endpoint(url, patience) as endpoint, progress(f"driving {arm}", output) as say:
            driven = drive_endpoint(
                endpoint, model, shape, arm=arm, replicates=replicates,
                on_turn=lambda turn, done=done, say=say: say(f"{next(done)} of {total} turns done"),  # type: ignore[misc]
                nonce=nonce,
            )  # fmt: skip
        turns += driven.turns
        incidents += driven.incidents
        if driven.is_stopped:
            ended = "interrupted"
            break
    rows = do_no_harm_rows(turns, incidents, options.silent_is_zero)
    if ended and not turns:
        raise KeyboardInterrupt
    if not ended and not any(row.turn_count for row in rows):
        ended = "no turn was answered"
    source = Source(None, options.scenario, shape, shape.sessions * shape.turns, shape.sessions * (shape.turns - 1))
    return ReplayRun(source, None, rows=rows, ended=ended)


def _named(text: str) -> tuple[str, str]:
    """Split `before=http://host:8000`; an address alone is its own name."""
    name, equals, url = text.partition("=")
    if equals and "/" not in name:
        return printable(name.strip()), url.strip()
    return printable(text.strip()), text.strip()


def _first_model(url: str, patience: Patience) -> str:
    with Endpoint(url, patience) as endpoint:
        return endpoint.models()[0]


def _patience(timeout_seconds: float | None) -> Patience:
    # A server that reads a long prompt is silent all the while.
    return (
        Patience() if timeout_seconds is None else Patience(idle_seconds=timeout_seconds, total_seconds=timeout_seconds)
    )
