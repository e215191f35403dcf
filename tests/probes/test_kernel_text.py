"""The two shapes of most kernel texts. What does not have the shape is unreadable, never 0."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.kernel_text import kilobyte_fields, numbers_by_name, single_number
from pinprobe.probes.reading import Reading, Unreadable

FUZZ = settings(derandomize=True, deadline=None, max_examples=150)
NOT_COUNTS = ["", "-1", "+1", "1.5", "0x10", "1e3", "12a", "unlimited", "max", "\u0663", "\u00b2", "9" * 21, "1 2"]


@pytest.mark.parametrize(
    ("line", "read_bytes"),
    [
        ("VmRSS:\t    1712 kB", 1_753_088),
        ("VmRSS:\t       0 kB", 0),
        ("VmRSS: 18446744073709551615 kB", 18_446_744_073_709_551_615 * 1024),
    ],
)
def test_a_line_of_kibibytes_is_read_as_bytes(line: str, read_bytes: int) -> None:
    assert kilobyte_fields(line + "\n", ["VmRSS"], "status")["VmRSS"] == Reading(read_bytes, "status VmRSS")


def test_a_missing_line_is_unreadable_and_not_zero() -> None:
    fields = kilobyte_fields("VmRSS:\t1712 kB\n", ["VmPin"], "status")
    assert fields["VmPin"] == Unreadable("status has no line VmPin")


@pytest.mark.parametrize("number", NOT_COUNTS)
def test_a_line_that_holds_no_count_is_unreadable_and_quoted(number: str) -> None:
    amount = kilobyte_fields(f"VmRSS:\t{number} kB\n", ["VmRSS"], "status")["VmRSS"]
    assert isinstance(amount, Unreadable)
    assert "VmRSS" in amount.reason
    assert number[:20] in amount.reason


@pytest.mark.parametrize("value", ["1712", "1712 KB", "1712 MB", "1712kB", "1712 kB more", "kB", "kB 1712"])
def test_a_line_in_another_unit_is_unreadable(value: str) -> None:
    assert isinstance(kilobyte_fields(f"VmRSS: {value}\n", ["VmRSS"], "status")["VmRSS"], Unreadable)


def test_a_name_is_the_whole_of_what_stands_before_the_colon() -> None:
    text = "VmRSSmore: 1 kB\nxVmRSS: 2 kB\n VmRSS: 3 kB\nvmrss: 4 kB\n"
    assert isinstance(kilobyte_fields(text, ["VmRSS"], "status")["VmRSS"], Unreadable)


@pytest.mark.parametrize("separator", ["\r", "\x0b", "\x1c", "\u2028"])  # all of them line ends to str.splitlines
def test_a_process_cannot_write_a_line_of_status_into_its_own_name(separator: str) -> None:
    # The kernel escapes newline and backslash in a name and nothing else, so these stand in its line as they are.
    text = f"Name:\tx{separator}VmRSS: 1 kB\nVmRSS:\t    1712 kB\n"
    assert kilobyte_fields(text, ["VmRSS"], "status")["VmRSS"] == Reading(1_753_088, "status VmRSS")


def test_of_two_lines_of_one_name_the_first_counts() -> None:
    # The second belongs to something else: in smaps, to the next mapping.
    assert kilobyte_fields("Rss: 4 kB\nRss: 8 kB\n", ["Rss"], "smaps")["Rss"] == Reading(4096, "smaps Rss")


def test_an_unreadable_text_makes_every_field_unreadable_for_its_reason() -> None:
    lost = Unreadable("/proc/1/status: Permission denied")
    assert kilobyte_fields(lost, ["VmRSS", "VmLck"], "status") == {"VmRSS": lost, "VmLck": lost}
    assert numbers_by_name(lost) == lost
    assert single_number(lost, "memory.max") == lost


def test_every_amount_of_a_text_carries_the_error_bar_that_was_given() -> None:
    fields = kilobyte_fields("A: 1 kB\nB: 2 kB\n", ["A", "B"], "status", error_bytes=64)
    assert fields == {"A": Reading(1024, "status A", 64), "B": Reading(2048, "status B", 64)}


def test_numbers_are_read_by_name_and_lines_of_another_shape_are_passed_over() -> None:
    text = "cache 157347840\nrss\nhits 1 2\nminus -1\nodd 0x1\nshmem 52428800\n\n"
    assert numbers_by_name(text) == {"cache": 157_347_840, "shmem": 52_428_800}


@pytest.mark.parametrize("text", ["1073741824\n", "1073741824", " 1073741824 \n"])
def test_a_single_number_is_read(text: str) -> None:
    assert single_number(text, "memory.max") == Reading(1_073_741_824, "memory.max")


@pytest.mark.parametrize("text", NOT_COUNTS)
def test_a_file_that_holds_no_count_is_unreadable_and_quoted(text: str) -> None:
    amount = single_number(text + "\n", "memory.max")
    assert isinstance(amount, Unreadable)
    assert amount.reason.startswith("memory.max reads ")
    assert text[:20] in amount.reason


def test_a_long_text_is_not_quoted_whole() -> None:
    # A reason ends up in one line of a table.
    amount = single_number("x" * 10_000, "memory.max")
    assert isinstance(amount, Unreadable)
    assert len(amount.reason) < 100


@given(text=st.text())
@FUZZ
def test_any_text_gives_a_count_that_stands_in_it_or_nothing(text: str) -> None:
    amount = single_number(text, "memory.max")
    assert isinstance(amount, Unreadable) or str(amount.bytes) in re.findall("[1-9][0-9]*|0", text)
    numbers = numbers_by_name(text)
    assert not isinstance(numbers, Unreadable)
    assert all(re.search(rf"{re.escape(name)}\s+0*{count}\b", text) for name, count in numbers.items())


@given(data=st.data())
@FUZZ
def test_a_damaged_meminfo_reads_as_it_was_or_not_at_all(
    data: st.DataObject, saved_host: Callable[[str], HostTree], damage: Callable[[st.DataObject, str], str]
) -> None:
    whole = saved_host("gpu_process").text("/proc/meminfo")
    assert isinstance(whole, str)
    names = ("MemTotal", "MemFree", "MemAvailable", "Shmem", "Mlocked", "Hugetlb")
    intact = {name: int(re.findall(rf"(?m)^{name}: +(\d+) kB$", whole)[0]) * 1024 for name in names}
    for name, amount in kilobyte_fields(damage(data, whole), names, "/proc/meminfo").items():
        assert isinstance(amount, Unreadable) or amount.bytes == intact[name]
