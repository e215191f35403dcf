"""Turns as rows, and rows compared: what is known, what lies between bounds, and when nothing may be said."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinprobe.ledger.replay.arms_compared import Comparison, Verdict, compare
from pinprobe.ledger.replay.do_no_harm import Bounds, DoNoHarmRow, Incident, Turn, do_no_harm_rows
from pinprobe.probes.reading import Unreadable

SILENT = Unreadable("the server's usage has no prompt_tokens_details")


def turn(
    number: int = 2,
    prompt: int | Unreadable = 1000,
    cached: int | Unreadable = 800,
    ttft: float = 0.25,
    rate: float | Unreadable = 50.0,
    arm: str = "C",
    replicate: int = 1,
    session: int = 1,
    is_counted: bool = False,
) -> Turn:
    return Turn(arm, replicate, session, number, 1000, prompt, cached, 300, is_counted, ttft, ttft + 6, rate)


def failed(error: str, number: int = 2, session: int = 1, arm: str = "C") -> Turn:
    unknown = Unreadable(error)
    return Turn(arm, 1, session, number, 1000, unknown, unknown, unknown, False, unknown, unknown, unknown, error)


def row(*turns: Turn) -> DoNoHarmRow:
    (only,) = do_no_harm_rows(turns)
    return only


# -- rows


def test_a_row_is_of_the_turns_after_the_first_but_for_the_first_share() -> None:
    found = row(
        turn(1, prompt=1000, cached=0, ttft=9.0, rate=10.0),
        turn(2, prompt=1200, cached=900, ttft=0.2, rate=48.0),
        turn(3, prompt=1400, cached=1100, ttft=0.4, rate=52.0),
        turn(4, prompt=1600, cached=1500, ttft=0.3, rate=49.0),
    )
    assert found.cached_share == Bounds(3500 / 5200, 3500 / 5200)
    assert found.cached_share_later == Bounds(3500 / 4200, 3500 / 4200)
    assert (found.ttft_median_seconds, found.tokens_a_second) == (0.3, 49.0)
    assert found.uncached_tokens_a_turn == Bounds(700 / 3, 700 / 3)
    assert found.prompt_tokens_a_turn == 1400
    assert (found.turn_count, found.later_count, found.error_count, found.silent_count) == (4, 3, 0, 0)
    assert found.incidents == ()


def test_what_is_not_said_to_be_cached_leaves_a_figure_between_two_bounds() -> None:
    found = row(turn(1, prompt=1000, cached=SILENT), turn(2, prompt=1000, cached=900), turn(3, 2000, SILENT))
    assert found.silent_count == 2
    assert found.cached_share == Bounds(900 / 4000, 3900 / 4000)
    assert found.cached_share_later == Bounds(900 / 3000, 2900 / 3000)
    assert found.uncached_tokens_a_turn == Bounds(100 / 2, 2100 / 2)


def test_what_no_answer_says_is_unknown_and_never_zero() -> None:
    found = row(turn(1, cached=SILENT), turn(2, cached=SILENT))
    for figure in (found.cached_share, found.cached_share_later, found.uncached_tokens_a_turn):
        assert isinstance(figure, Unreadable)
        assert "--enable-prompt-tokens-details" in figure.reason
    assert found.ttft_median_seconds == 0.25


def test_who_knows_that_silence_is_zero_can_have_it_counted_so() -> None:
    turns = [turn(1, prompt=1000, cached=SILENT), turn(2, prompt=1000, cached=900), turn(3, 2000, SILENT)]
    (found,) = do_no_harm_rows(turns, silent_is_zero=True)
    assert found.cached_share == Bounds(900 / 4000, 900 / 4000)
    assert found.uncached_tokens_a_turn == Bounds(1050, 1050)
    assert found.silent_count == 2
    assert found.incidents == ("2 of 3 answers do not say what was cached, taken as 0 as was asked",)
    (all_silent,) = do_no_harm_rows([turn(1, cached=SILENT), turn(2, cached=SILENT)], silent_is_zero=True)
    assert isinstance(all_silent.cached_share, Unreadable)


def test_a_drive_of_first_turns_alone_says_so() -> None:
    found = row(turn(1, cached=0), turn(1, cached=0, session=2))
    assert found.cached_share == Bounds(0.0, 0.0)
    for figure in (found.cached_share_later, found.ttft_median_seconds, found.uncached_tokens_a_turn):
        assert figure == Unreadable("no turn after the first was answered")


def test_answers_without_a_length_or_a_rate_are_left_out_and_counted() -> None:
    unknown = Unreadable("no usage")
    found = row(turn(2), turn(3, prompt=unknown, cached=unknown, rate=unknown, is_counted=True))
    assert found.cached_share_later == Bounds(0.8, 0.8)
    assert (found.prompt_tokens_a_turn, found.tokens_a_second) == (1000, 50.0)
    assert found.incidents == (
        "1 of 2 answers give no count of tokens; the pieces of the stream were counted",
        "1 of 2 answers do not say how long their prompt was and are in no share",
        "1 of 2 answers came in one piece and are in no rate",
    )


def test_prompts_of_no_token_divide_nothing() -> None:
    assert isinstance(row(turn(2, prompt=0, cached=0)).cached_share, Unreadable)


def test_equal_errors_are_one_incident_at_their_first_place() -> None:
    found = row(
        failed("HTTP 503", 3, 2), turn(), failed("HTTP 503", 2, 5), failed("cut", 2, 1), failed("HTTP 503", 4, 1)
    )
    assert found.error_count == 4
    assert found.incidents == ("session 1, turn 2: cut", "session 5, turn 2 and 2 more: HTTP 503")


def test_rows_stand_by_arm_as_they_come_and_by_replicate() -> None:
    turns = [turn(arm="D"), turn(arm="B", replicate=2), turn(arm="D", replicate=3), turn(arm="B", replicate=1)]
    found = do_no_harm_rows(
        turns, [Incident("D", 3, "the drafter ran out of memory"), Incident("E", 1, "did not boot")]
    )
    assert [(row.arm, row.replicate) for row in found] == [("D", 1), ("D", 3), ("B", 1), ("B", 2), ("E", 1)]
    assert found[1].incidents == ("the drafter ran out of memory",)
    assert (found[4].turn_count, found[4].incidents) == (0, ("did not boot",))


def test_of_no_turns_there_are_no_rows_and_nothing_differs() -> None:
    assert do_no_harm_rows([]) == ()
    assert compare([]) == Comparison((), ())


COUNTS = st.integers(0, 10**12)
TURNS = st.builds(
    lambda number, prompt, share, is_silent, ttft, rate: turn(
        number, prompt, SILENT if is_silent else int(prompt * share), ttft, rate
    ),
    st.integers(1, 4), COUNTS, st.floats(0, 1), st.booleans(), st.floats(0, 1e6), st.floats(0, 1e12),
)  # fmt: skip


@given(st.lists(TURNS, min_size=1, max_size=20))
def test_the_truth_lies_within_the_bounds_whatever_the_silent_answers_hide(turns: list[Turn]) -> None:
    found = row(*turns)
    for hidden in (0.0, 0.3, 1.0):
        told = [replace(t, cached_tokens=int(t.prompt_tokens * hidden)) if t.cached_tokens is SILENT else t
                for t in turns if isinstance(t.prompt_tokens, int)]  # fmt: skip
        truth = row(*told)
        for name in ("cached_share", "cached_share_later", "uncached_tokens_a_turn"):
            bounds, exact = getattr(found, name), getattr(truth, name)
            if isinstance(bounds, Bounds):
                assert exact.is_exact
                assert bounds.low <= exact.low <= bounds.high
    later = [t.ttft_seconds for t in turns if t.number > 1 and isinstance(t.ttft_seconds, float)]
    assert not later or found.ttft_median_seconds == statistics.median(later)


# -- rows compared


def arms(figures: dict[str, list[float]], cached: int | Unreadable = 800) -> list[DoNoHarmRow]:
    """Rows whose time to the first token is given, an arm and a replicate each."""
    return [
        row(turn(2, cached=cached, ttft=seconds, arm=arm, replicate=number))
        for arm, replicates in figures.items()
        for number, seconds in enumerate(replicates, 1)
    ]


def verdict_of(figures: dict[str, list[float]], figure: str = "ttft_median_seconds") -> Verdict:
    (difference,) = (d for d in compare(arms(figures)).differences if d.figure == figure)
    return difference.verdict


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([12.1, 12.3], [0.27, 0.28], Verdict.LOWER),
        ([0.27, 0.28], [12.1, 12.3], Verdict.HIGHER),
        ([0.181, 0.321], [0.197, 0.200], Verdict.WITHIN_THE_SPREAD),  # one lies inside of the other
        ([0.1, 0.3], [0.4, 0.6], Verdict.WITHIN_THE_SPREAD),  # apart, and by less than either spreads
        ([0.1, 0.3], [0.51, 0.52], Verdict.HIGHER),
        ([0.2, 0.2], [0.2, 0.2], Verdict.WITHIN_THE_SPREAD),
        ([0.2], [12.0, 12.1], Verdict.UNTOLD),
        ([0.2, 0.2], [12.0], Verdict.UNTOLD),
    ],
)
def test_no_arm_is_said_to_differ_within_what_replicates_differ_by(
    ours: list[float], theirs: list[float], verdict: Verdict
) -> None:
    assert verdict_of({"B": ours, "C": theirs}) is verdict


@given(st.lists(st.floats(0, 100), min_size=1, max_size=5), st.lists(st.floats(0, 100), min_size=1, max_size=5))
def test_a_comparison_the_other_way_round_says_the_opposite(ours: list[float], theirs: list[float]) -> None:
    opposite = {Verdict.HIGHER: Verdict.LOWER, Verdict.LOWER: Verdict.HIGHER}
    one = verdict_of({"B": ours, "C": theirs})
    assert verdict_of({"C": theirs, "B": ours}) is opposite.get(one, one)
    if one in opposite:
        assert min(len(ours), len(theirs)) > 1
        assert max(ours) < min(theirs) or max(theirs) < min(ours)


def test_every_arm_is_held_against_the_first() -> None:
    found = compare(arms({"B": [12.0, 12.1], "C": [0.2, 0.3], "D": [0.2, 0.3]}))
    assert {(d.baseline_arm, d.arm) for d in found.differences} == {("B", "C"), ("B", "D")}
    assert len(found.differences) == 10
    assert found.caveats == ()


def test_a_figure_between_bounds_differs_only_where_all_of_it_does() -> None:
    def rows(arm: str, cached: int) -> list[DoNoHarmRow]:
        return [
            row(
                turn(2, cached=cached, arm=arm, replicate=number, session=1),
                turn(2, cached=SILENT, arm=arm, replicate=number, session=2),
            )
            for number in (1, 2)
        ]

    found = [d for d in compare([*rows("B", 100), *rows("C", 900)]).differences if "cached" in d.figure]
    assert {d.verdict for d in found} == {Verdict.UNTOLD}
    assert {d.reason for d in found} == {"2 answers of B do not say what was cached"}
    exact = [row(turn(2, cached=10, arm="A", replicate=number)) for number in (1, 2)]
    apart = [d for d in compare([*exact, *rows("C", 900)]).differences if "cached_" in d.figure]
    assert {d.figure: d.verdict for d in apart} == {
        "cached_share": Verdict.HIGHER, "cached_share_later": Verdict.HIGHER, "uncached_tokens_a_turn": Verdict.LOWER,
    }  # fmt: skip


def test_an_unknown_figure_of_one_replicate_leaves_the_arm_untold() -> None:
    rows = [*arms({"B": [1.0, 1.0]}), *arms({"C": [1.0]}), row(turn(2, cached=SILENT, arm="C", replicate=2))]
    untold = [d for d in compare(rows).differences if d.verdict is Verdict.UNTOLD]
    assert {d.figure for d in untold} == {"cached_share", "cached_share_later", "uncached_tokens_a_turn"}
    assert all(d.reason.startswith("C: no answer says") for d in untold)


def test_drives_that_were_not_the_same_are_told() -> None:
    ours = [row(turn(arm="B"), turn(3, arm="B"))]
    theirs = [row(turn(arm="C", prompt=1100), failed("HTTP 500", 3, arm="C"))]
    assert compare([*ours, *theirs]).caveats == (
        "B and C differ in their number of turns after the first (2 and 1), so they are not the same drive",
        "B and C differ in their number of errors (0 and 1), so they are not the same drive",
        "the prompts of B and C differ: 1,000 to 1,000 and 1,100 to 1,100 tokens a turn",
    )
