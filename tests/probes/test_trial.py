"""The three readings and their verdict, on a simulated bench; real allocators are tried by the command's tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pinprobe.probes.allowance import Allowance
from pinprobe.probes.control import control_fault
from pinprobe.probes.reading import Unreadable
from pinprobe.probes.trial import Trial, run_trial
from tests.probes.simulated import PAGE, SimulatedBench, cost_of, exact, power_of_two

ASKED = 16 * 154_927_104
PLENTY = Allowance(2**50, "the test")


def tried(bench: SimulatedBench) -> Trial:
    return run_trial(bench, "simulated", ASKED, PLENTY, PAGE)


def test_a_rounding_cache_is_told_from_the_price_of_a_page() -> None:
    verdict = tried(SimulatedBench(power_of_two)).verdict
    assert verdict.exit_code == 0
    assert "from a block of 4.000 GiB" in verdict.sentence
    assert "costs nothing" in verdict.sentence


def test_an_exact_allocator_is_said_to_be_exact_each_time() -> None:
    verdict = tried(SimulatedBench(exact, caches=False)).verdict
    assert verdict.exit_code == 0
    assert "takes what is asked, to the page; the same request again costs it anew" in verdict.sentence


@pytest.mark.parametrize("ratio", [0.95, 1.05, 0.0])
def test_a_control_that_lies_by_five_per_cent_makes_the_probe_invalid(ratio: float) -> None:
    verdict = tried(SimulatedBench(power_of_two, control_ratio=ratio)).verdict
    assert verdict.exit_code == 3
    assert verdict.sentence.startswith("probe invalid: the control took")


def test_without_a_control_nothing_is_proven() -> None:
    complete = tried(SimulatedBench(power_of_two))
    verdict = replace(complete, control=None).verdict
    assert (verdict.exit_code, verdict.sentence) == (3, "probe invalid: no control was measured")


def test_the_control_is_measured_first() -> None:
    order: list[str] = []

    class Watched(SimulatedBench):
        def measure(self, asked_bytes, limit_bytes=None, *, control=False):  # type: ignore[no-untyped-def]
            order.append("control" if control else "pinned")
            return super().measure(asked_bytes, limit_bytes, control=control)

    tried(Watched(power_of_two))
    assert order == ["control", "pinned", "pinned"]


def test_an_error_bar_wider_than_the_finding_is_no_control() -> None:
    wide = cost_of(1_000_000, grown=exact(1_000_000), block=exact(1_000_000), error=512 * 2**20)
    fault = control_fault(wide, PAGE)
    assert fault is not None
    assert "too wide" in fault


def test_an_unreadable_control_says_why() -> None:
    unread = replace(cost_of(ASKED, grown=0), resident=Unreadable("statm: no such file"))
    assert control_fault(unread, PAGE) == "the control is unreadable, because statm: no such file"


def test_a_block_smaller_than_the_ask_comes_before_everything_else() -> None:
    trial = tried(SimulatedBench(lambda asked: asked // 2, control_ratio=1.05))
    assert trial.verdict.exit_code == 1
    assert trial.verdict.sentence.startswith("memory is not safe")


def test_two_sources_that_disagree_prove_nothing() -> None:
    trial = tried(SimulatedBench(power_of_two))
    disagreeing = replace(trial, pinned=cost_of(ASKED, grown=4 * 2**30, block=4 * 2**30, second=2**30))
    assert disagreeing.verdict.exit_code == 3
    assert "disagree" in disagreeing.verdict.sentence


def test_growth_that_no_block_explains_is_flagged_whatever_the_mechanism() -> None:
    # An emulation back end let a second copy ride along: 118 GiB asked, 238 GiB taken.
    trial = tried(SimulatedBench(exact, caches=False))
    twice = cost_of(ASKED, grown=2 * exact(ASKED), block=exact(ASKED))
    assert "something rides along" in replace(trial, pinned=twice, again=twice).verdict.sentence


def test_a_failure_keeps_the_rows_before_it() -> None:
    trial = tried(SimulatedBench(power_of_two, fails_at=1))
    assert trial.control is not None
    assert (trial.pinned, trial.ended) == (None, "simulated: no")
    assert trial.verdict.exit_code == 3


@pytest.mark.parametrize("asked", [64 * 1024, 1_000_000, 5 * 2**20, ASKED])
def test_some_pages_of_the_interpreter_s_void_no_run_and_five_per_cent_do(asked: int) -> None:
    few = min(4 * PAGE, asked // 50)
    assert control_fault(cost_of(asked, grown=exact(asked) + few), PAGE) is None
    assert control_fault(cost_of(asked, grown=int(exact(asked) * 1.05)), PAGE) is not None
    assert control_fault(cost_of(asked, grown=int(exact(asked) * 0.95)), PAGE) is not None
