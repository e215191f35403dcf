"""What the guides show to be copied works as it stands there: a config, a trace, and an engine with ring and pool."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pinprobe.ledger.config.checks import run_checks
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.replay.trace import read_trace

DOCS = Path(__file__).parent.parent / "docs"


def shown(guide: str, language: str) -> str:
    """The one block of a language in a guide, or the first of them."""
    found = re.search(rf"^```{language}\n(.*?)^```$", (DOCS / guide).read_text(encoding="utf-8"), re.M | re.S)
    assert found is not None, guide
    return found[1]


def test_the_config_of_the_ledger_s_guide_is_whole_and_its_checks_hold(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(shown("ledger.md", "yaml"), encoding="utf-8")
    config = load_config(path)
    assert [(tenant.name, tenant.kind) for tenant in config.tenants] == [
        ("cache.ring", "savepoint_ring"),
        ("cache.pool", "retention_pool"),
    ]
    assert all(result.holds for result in run_checks(config))


def test_the_trace_of_the_replay_s_guide_is_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(shown("replay.md", "csv"), encoding="utf-8")
    assert [(request.savepoint, request.parent) for request in read_trace(path)] == [(1, None), (2, None), (3, 1)]


def test_the_engine_of_the_savepoints_guide_runs_and_reads_back_what_it_staged() -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    code = shown("savepoints.md", "python").replace('prepare_allocator("auto"', 'prepare_allocator("mlock"')
    # The pool keeps on a thread of its own, so the guide's two halves need the copy to have ended between them.
    code = code.replace("# Before one.\n", "copy_out.drain(20)\nkept = state_of_one_sequence['state'].clone()\n")
    code = code.replace("hold = pool.match", "state_of_one_sequence['state'].zero_()\nhold = pool.match", 1)
    code = code.replace("keep_free_bytes=4 * 2**30", "")
    tokens = list(range(3000))
    names: dict[str, Any] = {
        "state_of_one_sequence": {"conv": torch.rand(4, 64), "state": torch.rand(4, 8, 8)},
        "stream": None,
        "tokens": tokens,
        "prompt": [*tokens, 7, 8, 9],
        "conversation": "one",
    }
    exec(code, names)  # the guide's own words
    assert isinstance(names["ledger"], HostPinnedLedger)
    hold = names["hold"]
    assert hold is not None
    assert hold.tokens == 3000
    assert torch.equal(names["state_of_one_sequence"]["state"], names["kept"])
