"""The kernel's counters of one process, read from whole saved texts and from this very process."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.probes.counters import STATUS_FIELDS, Counters, read_counters, read_mapped, read_smaps_rollup, read_statm
from pinprobe.probes.exactness import counter_error_bytes
from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.reading import Reading, Unreadable

FUZZ = settings(derandomize=True, deadline=None, max_examples=150)
CAPTURED = ["gpu_process", "cgroup_hybrid", "container_v1", "cgroup_v2", "old_kernel", "pages_64k"]


def bytes_of(amount: Any) -> int:
    assert isinstance(amount, Reading), amount
    return amount.bytes


@pytest.mark.parametrize(
    ("host", "name", "expected_bytes"),
    [
        ("gpu_process", "VmRSS", 5_749_641_216),
        ("gpu_process", "statm", 5_749_641_216),
        ("gpu_process", "RssAnon", 858_710_016),
        ("gpu_process", "RssFile", 312_848_384),
        ("gpu_process", "RssShmem", 4_578_082_816),
        ("gpu_process", "VmLck", 268_435_456),
        ("gpu_process", "VmPin", 0),
        ("gpu_process", "HugetlbPages", 268_435_456),
        ("gpu_process", "VmPTE", 12_349_440),
        ("gpu_process", "VmSize", 23_666_384_896),
        ("old_kernel", "VmLck", 67_108_864),
        ("old_kernel", "statm", 101_355_520),
        ("pages_64k", "VmRSS", 64_094_208),
        ("pages_64k", "statm", 64_094_208),  # 978 pages of 64 KiB
        ("sandbox_gvisor", "VmRSS", 62_914_560),
        ("sandbox_gvisor", "statm", 62_914_560),
    ],
)
def test_a_saved_process_reads_as_its_text_says(
    host: str, name: str, expected_bytes: int, saved_host: Callable[[str], HostTree]
) -> None:
    assert bytes_of(read_counters(saved_host(host))[name]) == expected_bytes


@pytest.mark.parametrize("host", [*CAPTURED, "sandbox_gvisor"])
def test_the_mapped_address_space_is_the_first_field_of_statm(host: str, saved_host: Callable[[str], HostTree]) -> None:
    tree = saved_host(host)
    assert bytes_of(read_mapped(tree)) == bytes_of(read_counters(tree)["VmSize"])


@pytest.mark.parametrize("host", CAPTURED)
def test_the_parts_add_up_to_the_whole(host: str, saved_host: Callable[[str], HostTree]) -> None:
    counters = read_counters(saved_host(host))
    parts = counters["RssAnon"] + counters["RssFile"] + counters["RssShmem"]
    assert bytes_of(parts) == bytes_of(counters["VmRSS"]) == bytes_of(counters["statm"])


@pytest.mark.parametrize("name", ["RssAnon", "RssFile", "RssShmem", "VmLck", "VmPin", "HugetlbPages", "VmPTE"])
def test_a_line_that_a_sandbox_leaves_out_is_unreadable_and_not_zero(
    name: str, saved_host: Callable[[str], HostTree]
) -> None:
    assert read_counters(saved_host("sandbox_gvisor"))[name] == Unreadable(f"status has no line {name}")


def test_a_process_that_is_not_there_is_unreadable_in_every_counter(saved_host: Callable[[str], HostTree]) -> None:
    counters = read_counters(saved_host("gpu_process"), pid=4711)
    assert set(counters.by_name) == {*STATUS_FIELDS, "statm"}
    assert all(isinstance(amount, Unreadable) for amount in counters.by_name.values())
    assert isinstance(read_smaps_rollup(saved_host("gpu_process"), pid=4711), Unreadable)


def test_a_counter_that_nobody_reads_is_unreadable_and_named() -> None:
    assert Counters({})["VmSwap"] == Unreadable("no counter is called VmSwap")


def test_a_sum_of_three_counters_may_be_off_by_three_times_as_much(saved_host: Callable[[str], HostTree]) -> None:
    counters = read_counters(saved_host("gpu_process"), error_bytes=4096)
    errors = {name: amount.error_bytes for name, amount in counters.by_name.items() if isinstance(amount, Reading)}
    three, one = dict.fromkeys(("VmRSS", "statm"), 12288), dict.fromkeys(("RssAnon", "RssFile", "RssShmem"), 4096)
    # The others are not kept per CPU.
    assert errors == {**three, **one, **dict.fromkeys(("VmLck", "VmPin", "HugetlbPages", "VmPTE", "VmSize"), 0)}


def test_a_difference_keeps_what_is_unreadable_on_either_side() -> None:
    lost = Unreadable("status has no line VmPin")
    later = Counters({"VmRSS": Reading(8192, "status"), "VmPin": lost, "VmLck": Reading(0, "status")})
    earlier = Counters({"VmRSS": Reading(4096, "status"), "VmPin": Reading(0, "status"), "VmLck": lost})
    assert (later - earlier).by_name == {"VmRSS": Reading(4096, "status"), "VmPin": lost, "VmLck": lost}


@pytest.mark.parametrize("host", ["old_kernel", "cgroup_v2"])
def test_where_counters_lag_the_error_bar_covers_the_lag(host: str, saved_host: Callable[[str], HostTree]) -> None:
    # Both ran with 4 CPUs on kernels that count late; smaps_rollup walked the page tables.
    tree = saved_host(host)
    resident = read_counters(tree, error_bytes=counter_error_bytes(4, 4096))["VmRSS"]
    walked = bytes_of(read_smaps_rollup(tree))
    assert bytes_of(resident) < walked
    assert isinstance(resident, Reading)
    assert resident.within(walked)


@pytest.mark.parametrize(
    "text", ["", "\n", "1", "35840", "35840 x", "35840 -1", "35840 ٣ 0", "35840 " + "9" * 21, "a b"]
)
def test_a_statm_without_a_resident_count_is_unreadable(
    text: str, written_host: Callable[[dict[str, str]], HostTree]
) -> None:
    assert isinstance(read_statm(written_host({"/proc/self/statm": text})), Unreadable)


def test_a_kernel_without_smaps_rollup_is_unreadable_there(saved_host: Callable[[str], HostTree]) -> None:
    assert read_smaps_rollup(saved_host("sandbox_gvisor")) == Unreadable(
        "/proc/self/smaps_rollup: No such file or directory"
    )


@given(
    status=st.one_of(
        st.binary(max_size=200),
        st.lists(
            st.tuples(
                st.sampled_from([*STATUS_FIELDS, "Name"]), st.text(alphabet=":-+ \t0123456789kBMx²٣", max_size=14)
            ),
            max_size=12,
        ).map(lambda lines: "".join(f"{name}:{value}\n" for name, value in lines).encode()),
    ),
    statm=st.one_of(st.binary(max_size=60), st.from_regex(rb"\A[0-9x.-]{1,22} [0-9]{1,22}( [0-9]){0,5}\n?\Z")),
)
@FUZZ
def test_any_bytes_give_counts_that_stand_in_them_or_nothing(
    status: bytes, statm: bytes, fuzzed_host: Callable[[dict[str, bytes]], HostTree]
) -> None:
    tree = fuzzed_host({"/proc/self/status": status, "/proc/self/statm": statm})
    for name, amount in read_counters(tree).by_name.items():
        if isinstance(amount, Unreadable):
            continue
        if name == "statm":
            assert amount.bytes == int(statm.split()[1]) * 4096
        else:
            assert re.search(rb"(?m)^%b:\s*0*%d\s+kB\s*$" % (name.encode(), amount.bytes // 1024), status)


@given(data=st.data())
@FUZZ
def test_a_damaged_status_reads_as_it_was_or_not_at_all(
    data: st.DataObject,
    saved_host: Callable[[str], HostTree],
    fuzzed_host: Callable[[dict[str, str]], HostTree],
    damage: Callable[[st.DataObject, str], str],
) -> None:
    whole = saved_host("gpu_process").text("/proc/self/status")
    assert isinstance(whole, str)
    intact = {name: int(kib) * 1024 for name, kib in re.findall(r"(?m)^(\w+):\s+(\d+) kB$", whole)}
    for name, amount in read_counters(fuzzed_host({"/proc/self/status": damage(data, whole)})).by_name.items():
        assert isinstance(amount, Unreadable) or name == "statm" or amount.bytes == intact[name]


def test_a_statm_cut_short_reads_as_it_was_or_not_at_all(
    saved_host: Callable[[str], HostTree], fuzzed_host: Callable[[dict[str, str]], HostTree]
) -> None:
    # The kernel prints seven fields; with fewer, the last one may have lost digits.
    whole = saved_host("gpu_process").text("/proc/self/statm")
    assert isinstance(whole, str)
    for length in range(len(whole)):
        amount = read_statm(fuzzed_host({"/proc/self/statm": whole[:length]}))
        assert isinstance(amount, Unreadable) or amount.bytes == 5_749_641_216


# From here on this process reads itself.


def test_resident_bytes_agree_with_psutil() -> None:
    # Any thread may take a page between two reads, so a moment counts in which psutil says the same before and after.
    process = psutil.Process()
    for _ in range(50):
        before = process.memory_info().rss
        counters = read_counters(THIS_HOST)
        if process.memory_info().rss == before:
            break
    else:
        pytest.skip("this process's memory never stood still")
    assert bytes_of(counters["statm"]) == before
    # status is summed at another instant; on kernels that count per CPU each of its three counters may be off.
    bar = 3 * counter_error_bytes(psutil.cpu_count() or 1, THIS_HOST.page_size_bytes)
    assert abs(bytes_of(counters["VmRSS"]) - before) <= bar


def test_the_page_table_walk_agrees_with_the_sum_over_smaps() -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("this kernel has no smaps_rollup")
    walked = bytes_of(read_smaps_rollup(THIS_HOST))
    summed = sum(row.rss for row in psutil.Process().memory_maps(grouped=False))
    # Reading smaps itself takes memory: the text and psutil's rows.
    assert abs(walked - summed) <= 8 * 2**20


def test_another_process_is_read_by_its_pid() -> None:
    parent = psutil.Process().parent()
    if parent is None:
        pytest.skip("this process has no parent that can be seen")
    read = bytes_of(read_counters(THIS_HOST, parent.pid)["VmSize"])
    assert abs(read - parent.memory_info().vms) <= 64 * 2**20  # the parent goes on working meanwhile


@pytest.fixture
def own_name() -> Iterator[Path]:
    comm = Path("/proc/self/comm")
    before = comm.read_bytes()
    yield comm
    comm.write_bytes(before.rstrip(b"\n"))


@pytest.mark.parametrize("name", [b"\x0bVmRSS: 1 kB", b"\rVmRSS: 1 kB", b"x\nVmRSS: 1 kB", b"\\nVmRSS: 1 kB"])
def test_no_name_that_a_process_gives_itself_changes_what_is_read(name: bytes, own_name: Path) -> None:
    own_name.write_bytes(name)
    assert bytes_of(read_counters(THIS_HOST)["VmRSS"]) > 2**20


def test_each_kind_of_memory_moves_its_own_counter() -> None:
    size = 64 * 2**20
    slack = 3 * counter_error_bytes(psutil.cpu_count() or 1, THIS_HOST.page_size_bytes) + 2**20
    start = read_counters(THIS_HOST)
    with OwnMapping.anonymous(size, huge_pages=False) as private:
        private.write_every_page()
        anonymous = read_counters(THIS_HOST) - start
    start = read_counters(THIS_HOST)
    with mmap.mmap(-1, size) as shared:  # MAP_SHARED | MAP_ANONYMOUS, as CUDA's pinned memory is
        for page in range(0, size, mmap.PAGESIZE):
            shared[page] = 1
        shmem = read_counters(THIS_HOST) - start
    assert abs(bytes_of(anonymous["RssAnon"]) - size) <= slack
    assert abs(bytes_of(anonymous["RssShmem"])) <= slack
    assert abs(bytes_of(shmem["RssShmem"]) - size) <= slack
    assert abs(bytes_of(shmem["RssAnon"])) <= slack
    for moved in (anonymous, shmem):
        assert abs(bytes_of(moved["VmRSS"]) - size) <= slack
        assert moved["VmLck"] == Reading(0, "status VmLck")
