"""Sizes for people, read and written."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pinprobe.probes.errors import BadRequest
from pinprobe.probes.units import LARGEST_SIZE_BYTES, format_bytes, parse_size, unit_for

FUZZ = settings(derandomize=True, deadline=None, max_examples=200)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1", 1),
        ("154927104", 154_927_104),
        ("154927104 B", 154_927_104),
        ("1.0", 1),
        ("0.5KiB", 512),
        ("2364 MiB", 2_478_833_664),  # 16 slots of 154,927,104 B are exactly that
        ("\t1.5GiB \n", 1_610_612_736),
        ("1TiB", 1_099_511_627_776),
        ("65536 TiB", 72_057_594_037_927_936),
    ],
)
def test_a_size_is_read(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("", "is not a size"),
        ("-4096", "is not a size"),
        ("+1", "is not a size"),
        ("1e9", "is not a size"),
        ("1_00", "is not a size"),
        ("1,00", "is not a size"),
        ("1,0000", "is not a size"),
        (",100", "is not a size"),
        (".5GiB", "is not a size"),
        ("5.GiB", "is not a size"),
        ("0x10", "is not a size"),
        ("GiB", "is not a size"),
        ("1 GiB 2", "is not a size"),
        ("nan", "is not a size"),
        ("\uff11", "is not a size"),  # a full-width 1, which int() would take
        ("\u0663 GiB", "is not a size"),  # an Arabic 3, likewise
        ("0", "no memory at all"),
        ("0.0GiB", "no memory at all"),
        ("1.5", "not a whole number of bytes"),
        ("0.0001KiB", "not a whole number of bytes"),
        ("65537TiB", "more than any address space"),
        ("72057594037927937", "more than any address space"),
        ("64g", "write 64GiB"),
        ("64G", "write 64GiB"),
        ("64GB", "write 64GiB"),
        ("64Gi", "write 64GiB"),
        ("1.5k", "write 1.5KiB"),
        ("64gib", "write 64GiB"),
        ("64GIB", "write 64GiB"),
        ("1PiB", "unknown unit 'PiB'"),
        ("1 pages", "unknown unit 'pages'"),
        ("1b", "unknown unit 'b'"),
    ],
)
def test_what_is_no_size_is_refused_with_its_text_and_the_reason(text: str, because: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(because)) as refused:
        parse_size(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("suffix", ["g", "GB", "m", "MB", "k", "kB", "T", "tb", "Gi", "ki"])
def test_a_suffix_that_two_people_read_differently_is_called_ambiguous(suffix: str) -> None:
    with pytest.raises(BadRequest, match="ambiguous"):
        parse_size(f"64{suffix}")


@pytest.mark.parametrize("text", ["9" * 5000 + " GiB", "1." + "0" * 5000])
def test_a_number_of_thousands_of_digits_is_refused_like_any_other(text: str) -> None:
    # Python itself refuses to read more than 4300 digits, with a ValueError.
    with pytest.raises(BadRequest):
        parse_size(text)


@given(text=st.one_of(st.text(), st.from_regex(r"\A\s*[0-9]{1,30}(\.[0-9]{1,30})?\s*[A-Za-z]{0,4}\s*\Z")))
@example(text="\u0663")
@FUZZ
def test_any_text_is_a_size_that_can_be_mapped_or_is_refused(text: str) -> None:
    try:
        size = parse_size(text)
    except BadRequest:
        return
    assert 1 <= size <= LARGEST_SIZE_BYTES


@given(
    number=st.integers(1, 2**16), unit=st.sampled_from([("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)])
)
@FUZZ
def test_a_whole_number_of_any_unit_is_that_many_powers_of_two(number: int, unit: tuple[str, int]) -> None:
    name, power = unit
    assert parse_size(f"{number}{name}") == parse_size(f"{number} {name}") == number << power


@pytest.mark.parametrize(
    ("value_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (-1, "-1 B"),
        (1024, "1.000 KiB"),
        (4096, "4.000 KiB"),
        (3_000_000, "2.861 MiB"),
        (107_374_181, "102.400 MiB"),  # the last below a tenth of a GiB, which a column in GiB would show as 0.100
        (154_927_104, "0.144 GiB"),
        (2_478_833_664, "2.309 GiB"),
        (-4_294_967_296, "-4.000 GiB"),
        (2**50, "1,048,576.000 GiB"),
    ],
)
def test_a_size_is_written_in_the_unit_that_still_tells_something(value_bytes: int, text: str) -> None:
    assert format_bytes(value_bytes) == text


@given(value_bytes=st.integers(-LARGEST_SIZE_BYTES, LARGEST_SIZE_BYTES))
@FUZZ
def test_what_is_written_is_the_value_to_three_decimals(value_bytes: int) -> None:
    number, name = format_bytes(value_bytes).split()
    factor = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}[name]
    # Half of the last decimal, and what a float of 53 bits loses at 2**56.
    assert abs(float(number.replace(",", "")) * factor - value_bytes) <= 0.0005 * factor * 1.001 + 16


def test_a_column_takes_its_unit_from_its_largest_value() -> None:
    unit = unit_for(16 * 2**30)
    assert (unit.name, unit.of(154_927_104), unit.of(0)) == ("GiB", "0.144", "0.000")
    assert unit_for(0).name == "KiB"
