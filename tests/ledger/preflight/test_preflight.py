"""What is needed, whom it binds, by how much it is short, and commands that mend it: the cases from the field."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.ledger.book.book_entry import BookRow
from pinprobe.ledger.book.host_book import HostBook
from pinprobe.ledger.config.registry import load_config
from pinprobe.ledger.preflight.book_check import BookSeen
from pinprobe.ledger.preflight.check import Check, State, exit_code_of
from pinprobe.ledger.preflight.needs import Needs, needs_of
from pinprobe.ledger.preflight.preflight import check_limits
from pinprobe.ledger.price import PriceList
from pinprobe.probes.allowance import Allowance
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.limits.read_limits import read_limits
from pinprobe.probes.reading import Unreadable
from pinprobe.probes.walk import walk
from tests.ledger.preflight.made_hosts import (
    AMD,
    GIB,
    MIB,
    NO_BOOK,
    NVIDIA,
    TTM,
    Texts,
    buffer,
    checked,
    large_host,
    made_host,
    meminfo,
    needs_from,
    needs_of_shipped,
    write_into,
)
from tests.ledger.preflight.test_every_check import CASES
from tests.probes.simulated import PAGE, SimulatedBench, power_of_two

# The expert configs on a host whose TTM allows half of its memory.

EXPERTS = pytest.mark.parametrize(
    ("name", "floor_mib"), [("expert-tiered-2x200k", 148_920), ("expert-tiered-4x200k", 161_848)]
)
_HALF_IS_TOO_LITTLE: Texts = {**AMD, **large_host(256 * GIB), TTM: f"{128 * GIB // 4096}\n"}


@EXPERTS
def test_ttm_at_half_of_the_memory_refuses_the_expert_configs_by_name(
    name: str, floor_mib: int, tmp_path: Path
) -> None:
    checks = checked(made_host(tmp_path, _HALF_IS_TOO_LITTLE), needs_of_shipped(name))
    failing = [check for check in checks.values() if check.state is State.ERROR]
    assert [check.name for check in failing] == ["ttm pages_limit"]
    (ttm,) = failing
    assert ttm.need_bytes is not None
    assert ttm.need_bytes >= floor_mib * MIB
    assert {"experts.host_pool", "weights.static"} <= set(ttm.tenants)
    assert "at every boot" in ttm.reason
    assert exit_code_of(checks.values()) == 1


@EXPERTS
def test_the_command_that_is_told_mends_it_and_so_does_the_target(name: str, floor_mib: int, tmp_path: Path) -> None:
    tree, needs = made_host(tmp_path, _HALF_IS_TOO_LITTLE), needs_of_shipped(name)
    carry_out(checked(tree, needs)["ttm pages_limit"].remedy, tree)
    assert exit_code_of(checked(tree, needs).values()) == 0
    # 204,800 MiB are what these hosts raise it to.
    write_into(tree.root, {TTM: f"{204_800 * MIB // 4096}\n"})
    assert exit_code_of(checked(tree, needs).values()) == 0
    # One page less than what is needed is too little.
    least = -(-(checked(tree, needs)["ttm pages_limit"].need_bytes or 0) // 4096)
    used = 15_306_752 // 4096
    write_into(tree.root, {TTM: f"{least + used - 1}\n"})
    assert exit_code_of(checked(tree, needs).values()) == 1
    write_into(tree.root, {TTM: f"{least + used}\n"})
    assert exit_code_of(checked(tree, needs).values()) == 0


def test_the_native_payload_passes_with_its_pool_of_40_gib_a_rank(tmp_path: Path) -> None:
    checks = checked(made_host(tmp_path, _HALF_IS_TOO_LITTLE), needs_of_shipped("expert-fp8-native"))
    assert checks["ttm pages_limit"].need_bytes == 80 * GIB
    assert exit_code_of(checks.values()) == 0


def carry_out(remedy: str, tree: HostTree) -> None:
    """Do on a recorded tree what a command would do on its host."""
    match = re.fullmatch(r"echo ([0-9]+) \| sudo tee (/[^ ]+)", remedy)
    assert match is not None, remedy
    tree.path(match[2]).write_text(f"{match[1]}\n", encoding="utf-8")


# imp#2070. A container limited to 8 GiB read 76 GiB free; then, counting page cache as used, 0.45 GiB where 68.9 GiB
# was droppable.


def container(limit: int, current: int, file: int, shmem: int = 0) -> Texts:
    """A container whose cgroup v2 has these figures, on a host with 76 GiB available."""
    folder = "/sys/fs/cgroup/box"
    return {
        "/proc/meminfo": meminfo(MemTotal=96 * GIB, MemFree=8 * GIB, MemAvailable=76 * GIB),
        "/proc/self/cgroup": "0::/box\n",
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.high": "max\n",
        f"{folder}/memory.current": f"{current}\n",
        f"{folder}/memory.stat": f"file {file}\nshmem {shmem}\ninactive_file {file - shmem}\nactive_file 0\n",
    }


def test_in_a_container_of_8_gib_what_the_host_has_free_is_not_to_be_had(tmp_path: Path) -> None:
    tree = made_host(tmp_path, container(8 * GIB, GIB, 0))
    checks = checked(tree, needs_from(tmp_path, buffer("10 GiB", "torch")))
    assert [check.name for check in checks.values() if check.state is State.ERROR] == ["cgroup v2"]
    assert "10.000 GiB are needed and 7.000 GiB are left" in checks["cgroup v2"].reason
    assert checked(tree, needs_from(tmp_path, buffer("6 GiB", "torch")))["cgroup v2"].state is State.OK


@pytest.mark.parametrize(("shmem_gib", "state"), [(0, State.OK), (40, State.ERROR)])
def test_page_cache_is_given_back_and_shared_memory_is_not(shmem_gib: int, state: State, tmp_path: Path) -> None:
    cache = 68 * GIB
    tree = made_host(tmp_path, container(70 * GIB, 69 * GIB, cache, shmem_gib * GIB))
    assert checked(tree, needs_from(tmp_path, buffer("60 GiB", "torch")))["cgroup v2"].state is state


# vllm#51080. Registering 511.96 GiB passes; 512.15 fails on the same driver, with an error about something else.


def test_what_one_call_does_not_register_is_refused_before_and_passes_in_pieces(tmp_path: Path) -> None:
    tree = made_host(tmp_path, {**large_host(1024 * GIB), "/proc/driver/nvidia/version": NVIDIA})
    whole = checked(tree, needs_from(tmp_path, buffer("512.15625 GiB", "registered")))
    assert [check.name for check in whole.values() if check.state is State.ERROR] == ["per-call ceiling"]
    reason = whole["per-call ceiling"].reason
    assert "one call registers less than 512.000 GiB and 512.156 GiB are asked" in reason
    assert "cut where no copy crosses" in reason
    halves = (f"t.{name}: {{kind: buffer, bytes: 256.078125 GiB, allocator: registered}}" for name in ("a", "b"))
    assert exit_code_of(checked(tree, needs_from(tmp_path, ", ".join(halves))).values()) == 0


# TensorRT-LLM#16106. Every rank took half of what was free: about 650 GiB against 440.


def test_what_each_rank_takes_is_counted_for_every_rank(tmp_path: Path) -> None:
    needs = needs_from(tmp_path, buffer("165 GiB", "torch"), ranks=4)
    texts = {**large_host(512 * GIB), "/proc/meminfo": meminfo(MemTotal=512 * GIB, MemAvailable=440 * GIB)}
    memory = checked(made_host(tmp_path, texts), needs)["MemAvailable"]
    assert (memory.state, memory.need_bytes) == (State.ERROR, 660 * GIB)
    assert "each of 4 ranks takes 165.000 GiB, and at most 110.0" in memory.reason
    assert memory.remedy == "pinprobe plan mine.yaml"


def test_a_later_rank_sees_what_earlier_ones_are_about_to_take(tmp_path: Path) -> None:
    needs = needs_from(tmp_path, buffer("165 GiB", "torch"))
    texts = {**large_host(512 * GIB), "/proc/meminfo": meminfo(MemTotal=512 * GIB, MemAvailable=440 * GIB)}
    tree = made_host(tmp_path, texts)
    folder = tmp_path / "book"
    folder.mkdir()
    states = []
    with HostBook(folder, "rank 0") as first, HostBook(folder, "rank 1") as second:
        for book in (first, second):
            seen = BookSeen(str(folder), HostBook(folder).read())
            states.append(checked(tree, needs, seen)["MemAvailable"].state)
            book.write([BookRow("cache.store", 165 * GIB, 165 * GIB, pending=True)])
        checks = checked(tree, needs, BookSeen(str(folder), HostBook(folder).read()))
    assert states == [State.OK, State.OK]
    assert checks["MemAvailable"].state is State.ERROR
    assert "330.000 GiB of it others in the host's book are about to take" in checks["MemAvailable"].reason
    assert (checks["host's book"].state, checks["host's book"].remedy) == (State.ADVICE, "pinprobe host")


def test_what_others_hold_already_is_gone_from_the_host_and_not_taken_off_twice(tmp_path: Path) -> None:
    folder = tmp_path / "book"
    folder.mkdir()
    with HostBook(folder, "rank 0") as book:
        book.write([BookRow("cache.store", 700 * MIB, 700 * MIB)])
        seen = BookSeen(str(folder), HostBook(folder).read())
        tree = made_host(tmp_path, {"/proc/self/cgroup": "0::/\n"})
        checks = checked(tree, needs_from(tmp_path, buffer("600 MiB", "pageable")), seen)
    assert checks["MemAvailable"].state is State.OK
    assert checks["host's book"].state is State.OK


def test_a_live_process_whose_rows_cannot_be_read_leaves_the_answer_open(tmp_path: Path) -> None:
    folder = tmp_path / "book"
    folder.mkdir()
    with HostBook(folder, "rank 0") as book:
        book.write([BookRow("cache.store", MIB, MIB)])
        (folder / f"{book.process}.json").write_text("{", encoding="utf-8")
        seen = BookSeen(str(folder), HostBook(folder).read())
    checks = checked(made_host(tmp_path, large_host(16 * GIB)), needs_from(tmp_path, buffer("1 MiB", "pageable")), seen)
    assert isinstance(checks["host's book"].value, Unreadable)
    assert exit_code_of(checks.values()) == 3


# Who is bound.


@pytest.mark.parametrize("allocator", ["torch", "cupy", "registered", "registered-memfd", "registered-hugetlb"])
def test_a_short_memlock_fails_nothing_that_a_driver_pins(allocator: str, tmp_path: Path) -> None:
    check = checked(made_host(tmp_path, {}), needs_from(tmp_path, buffer("64 MiB", allocator)))["RLIMIT_MEMLOCK"]
    assert (check.state, check.tenants) == (State.OK, ())
    assert check.binds == "mlock, RDMA, io_uring; not CUDA"


@pytest.mark.parametrize("allocator", ["auto", "torch-host"])
def test_a_short_memlock_is_advice_to_what_goes_on_without_a_lock(allocator: str, tmp_path: Path) -> None:
    check = checked(made_host(tmp_path, {}), needs_from(tmp_path, buffer("64 MiB", allocator)))["RLIMIT_MEMLOCK"]
    assert check.state is State.ADVICE
    assert check.remedy == f"sudo prlimit --pid $$ --memlock={64 * MIB}:{64 * MIB}"


def test_auto_is_pinned_by_the_driver_that_is_there(tmp_path: Path) -> None:
    tree = made_host(tmp_path, {**AMD, **large_host(256 * GIB)})
    assert checked(tree, needs_from(tmp_path, buffer("64 MiB", "auto")))["RLIMIT_MEMLOCK"].state is State.OK


def test_memlock_is_held_against_one_process_and_memory_against_all(tmp_path: Path) -> None:
    tenants = "a.ranks: {kind: buffer, bytes: 3 MiB, allocator: mlock, per: rank}, " \
        "b.once: {kind: buffer, bytes: 4 MiB, allocator: mlock, per: host}"  # fmt: skip
    checks = checked(made_host(tmp_path, {}), needs_from(tmp_path, tenants, ranks=4))
    assert (checks["RLIMIT_MEMLOCK"].need_bytes, checks["RLIMIT_MEMLOCK"].state) == (7 * MIB, State.OK)
    assert checks["MemAvailable"].need_bytes == 16 * MIB


def test_what_comes_from_a_pool_is_asked_of_the_pool_and_of_nothing_else(tmp_path: Path) -> None:
    checks = checked(made_host(tmp_path, {}), needs_from(tmp_path, buffer("3 MiB", "registered-hugetlb"), ranks=2))
    assert checks["hugepages 2 MiB"].need_bytes == 8 * MIB  # each copy in whole pages of 2 MiB
    assert [name for name, check in checks.items() if check.tenants] == ["hugepages 2 MiB", "per-call ceiling"]


def test_a_pool_that_nobody_takes_from_is_advice_since_memory_is_missing_elsewhere(tmp_path: Path) -> None:
    pool = "/sys/kernel/mm/hugepages/hugepages-2048kB"
    tree = made_host(tmp_path, {f"{pool}/free_hugepages": "64\n", f"{pool}/nr_hugepages": "64\n"})
    check = checked(tree, needs_from(tmp_path, buffer("64 MiB", "pageable")))["hugepages 2 MiB"]
    assert (check.state, check.remedy) == (State.ADVICE, f"echo 0 | sudo tee {pool}/nr_hugepages")


def test_the_block_that_a_map_measured_is_what_has_to_fit_and_not_the_ask(tmp_path: Path) -> None:
    bench = SimulatedBench(power_of_two)
    prices = PriceList()
    prices.add(walk(lambda: bench, "torch", 150 * MIB, [1], Allowance(2**40, "the test"), PAGE))
    path = tmp_path / "c.yaml"
    path.write_text(f"engine: {{name: mine}}\ntenants: {{{buffer('150 MiB', 'torch')}}}\n", encoding="utf-8")
    config = load_config(path)
    tree = made_host(tmp_path, {})  # whose cgroup leaves 249 MiB
    states = {
        prices_of: check_limits(read_limits(tree), needs_of(config, found, "c"), NO_BOOK)[1].state
        for prices_of, found in {"the ask": PriceList(), "a map": prices}.items()
    }
    assert states == {"the ask": State.OK, "a map": State.ERROR}


def test_a_limit_is_not_to_be_raised_beyond_what_the_host_has(tmp_path: Path) -> None:
    tree = made_host(tmp_path, {**AMD, **large_host(256 * GIB)})
    written = f"echo {200 * GIB // 4096 + MIB // 4096 * 15} | sudo tee {TTM}"
    # 15 MiB are what the card has already, 15,306,752 B, in whole MiB.
    assert checked(tree, needs_from(tmp_path, buffer("200 GiB", "torch")))["ttm pages_limit"].remedy == written
    check = checked(tree, needs_from(tmp_path, buffer("300 GiB", "torch")))["ttm pages_limit"]
    assert (check.state, check.remedy) == (State.ERROR, "pinprobe plan mine.yaml")
    needs = needs_from(tmp_path, buffer("200 GiB", "torch"))
    for target, remedy in ((240 * GIB, f"echo {240 * GIB // 4096} | sudo tee {TTM}"), (300 * GIB, written)):
        checks = check_limits(read_limits(tree), needs, NO_BOOK, target)
        (ttm,) = (each for each in checks if each.name == "ttm pages_limit")
        assert ttm.remedy == remedy


def test_earlyoom_is_told_its_own_share_and_what_the_config_leaves(tmp_path: Path) -> None:
    texts = {"/proc/812/comm": "earlyoom\n", "/proc/812/cmdline": "earlyoom\0-r\0" + "0\0-m\0" + "25,12\0"}
    tree = made_host(tmp_path, {**texts, **large_host(100 * GIB)})
    reason = checked(tree, needs_from(tmp_path, buffer("80 GiB", "pageable")))["OOM daemons"].reason
    assert "less than 25.000 GiB are available" in reason
    assert "this config leaves 16.0" in reason


# The remedies.


def test_a_cgroup_of_systemd_is_raised_through_it(tmp_path: Path) -> None:
    check = checked(made_host(tmp_path, {}), needs_from(tmp_path, buffer("300 MiB", "pageable")))["cgroup v2"]
    # 300 MiB that are its memory.high, less 261,320,704 B that are left, and 300 MiB that are needed.
    assert check.remedy == "sudo systemctl set-property b.service MemoryHigh=351M"


def test_the_command_for_a_cgroup_v1_mends_it(tmp_path: Path) -> None:
    tree = made_host(tmp_path, {}, saved="cgroup_hybrid")
    needs = needs_from(tmp_path, buffer("1200 MiB", "pageable"))
    check = checked(tree, needs)["cgroup v1"]
    assert check.state is State.ERROR
    carry_out(check.remedy, tree)
    write_into(tree.root, {"/sys/fs/cgroup/memory/pinprobe_fixture/inner/memory.stat": _without_hierarchical(tree)})
    assert checked(tree, needs)["cgroup v1"].state is State.OK


def _without_hierarchical(tree: HostTree) -> str:
    text = tree.text("/sys/fs/cgroup/memory/pinprobe_fixture/inner/memory.stat")
    assert isinstance(text, str)
    return re.sub(r"^hierarchical_memory_limit .*\n", "", text, flags=re.MULTILINE)


def test_a_limit_of_a_cgroup_out_of_sight_has_no_file_to_write_to(tmp_path: Path) -> None:
    needs = needs_from(tmp_path, buffer("500 MiB", "pageable"))
    check = checked(made_host(tmp_path, {}, saved="container_v1"), needs)["cgroup v1"]
    assert (check.state, check.remedy) == (State.ERROR, "pinprobe plan mine.yaml")


# Whatever the texts hold.

_FILES = sorted({name for case in CASES for name in case.texts if not name.endswith(("module", "pages"))})


@given(name=st.sampled_from(_FILES), content=st.one_of(st.binary(max_size=60), st.text(max_size=30).map(str.encode)))
@settings(derandomize=True, deadline=None, max_examples=150)
def test_any_bytes_in_any_file_give_checks_and_never_an_error(
    name: str, content: bytes, one_host: HostTree, of_everything: Callable[[], Needs]
) -> None:
    path = one_host.path(name)
    if path.is_dir():
        return
    before = path.read_bytes() if path.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    try:
        checks = check_limits(read_limits(one_host), of_everything(), NO_BOOK)
    finally:
        path.unlink() if before is None else path.write_bytes(before)
    assert all(isinstance(check, Check) for check in checks)
    assert exit_code_of(checks) in (0, 1, 3)


@pytest.fixture(scope="module")
def one_host(tmp_path_factory: pytest.TempPathFactory) -> HostTree:
    return made_host(tmp_path_factory.mktemp("fuzzed"), {**AMD, "/proc/812/comm": "earlyoom\n"})


@pytest.fixture(scope="module")
def of_everything(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Needs]:
    names = ("pageable", "mlock", "torch-host", "torch", "registered", "registered-memfd", "registered-hugetlb", "auto")
    tenants = ", ".join(f"t.n{at}: {{kind: buffer, bytes: 64 MiB, allocator: {name}}}" for at, name in enumerate(names))
    needs = needs_from(tmp_path_factory.mktemp("config"), tenants, ranks=2)
    return lambda: needs
