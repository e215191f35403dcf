"""The control that a working process takes: what it says of this one, of hosts that lie, and of busy neighbours."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pinprobe.probes.exactness import find_exactness
from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.in_process_control import CONTROL_BYTES, InProcessControl, run_control
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.reading import Amount, Reading, Unreadable
from tests.probes.allocators.kernel_word import MIB, counter_bytes

ASKED = 4 * MIB


def told(block: Amount | int = ASKED, resident: Amount | int = ASKED, growth: Amount | int = ASKED) -> InProcessControl:
    """A control of 4 MiB that read this."""

    def amount(value: Amount | int) -> Amount:
        return Reading(value, "told") if isinstance(value, int) else value

    return InProcessControl(ASKED, amount(block), amount(resident), amount(growth), error_bytes=0)


def host_with(root: Path, texts: dict[str, str]) -> HostTree:
    """This live host, with some of its files lying."""
    for name in ("maps", "smaps", "pagemap", "statm"):
        path = root / "proc/self" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in texts:
            path.write_text(texts[name])
        else:
            path.symlink_to(f"/proc/self/{name}")
    return HostTree(root)


# What is made of it.


def test_a_control_that_reads_1_000_has_no_fault() -> None:
    assert told().fault is None
    assert told().growth_fault is None


@pytest.mark.parametrize(
    ("control", "words"),
    [
        (told(block=2 * ASKED), "the mapping of the control reads 8,388,608 B for 4,194,304 B"),
        (told(resident=ASKED - 4096), "smaps of the control reads 4,190,208 B for 4,194,304 B"),
        (told(resident=0), "smaps of the control reads 0 B for 4,194,304 B"),
        (told(block=Unreadable("no maps")), "the mapping of the control is unreadable, because no maps"),
        (told(resident=Unreadable("no smaps")), "smaps of the control is unreadable, because no smaps"),
    ],
)
def test_a_mapping_that_does_not_read_as_asked_voids_every_mapping(control: InProcessControl, words: str) -> None:
    assert control.fault == words


@pytest.mark.parametrize(
    ("growth", "words"),
    [
        (Reading(2 * ASKED, "statm"), "the process grew by 8,388,608 B over a control of 4,194,304 B"),
        (Reading(0, "statm"), "the process grew by 0 B over a control of 4,194,304 B"),
        (Reading(-ASKED, "statm"), "the process grew by -4,194,304 B over a control of 4,194,304 B"),
        # A bar wider than what is looked for would let any figure pass.
        (Reading(0, "statm", error_bytes=2 * ASKED), "counters may be off by 8,388,608 B here"),
        (Unreadable("no statm"), "unreadable, because no statm"),
    ],
)
def test_counters_that_did_not_see_it_void_the_differences_alone(growth: Amount, words: str) -> None:
    assert told(growth=growth).growth_fault == words
    assert told(growth=growth).fault is None


def test_a_growth_within_the_counters_error_bar_is_no_fault() -> None:
    assert told(growth=Reading(ASKED - 512 * 1024, "statm", error_bytes=768 * 1024)).growth_fault is None
    assert told(growth=Reading(ASKED - 512 * 1024, "statm")).growth_fault is not None


# This host.


def test_here_the_control_reads_1_000_and_is_given_back() -> None:
    run_control(THIS_HOST)  # what the interpreter takes at the first time stays with it
    anonymous = counter_bytes("RssAnon")
    control = run_control(THIS_HOST)
    assert control.fault is None
    assert control.asked_bytes == CONTROL_BYTES
    assert (control.block, control.resident) == (Reading(CONTROL_BYTES, "mapping"), Reading(CONTROL_BYTES, "smaps"))
    assert control.error_bytes == find_exactness(THIS_HOST).error_bytes
    assert counter_bytes("RssAnon") - anonymous < CONTROL_BYTES // 2


def test_a_quiet_process_s_counters_see_it_too() -> None:
    if not find_exactness(THIS_HOST).statm:
        pytest.skip("this kernel sums its counters lazily")
    done = subprocess.run(
        [sys.executable, "-c", f"from {run_control.__module__} import *; print(run_control(HostTree()).growth_fault)"],
        env={"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "None\n"


def test_threads_that_take_and_return_memory_do_not_move_the_control_s_own_word() -> None:
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            with OwnMapping.anonymous(3 * MIB, huge_pages=False) as memory:
                memory.write_every_page()

    threads = [threading.Thread(target=disturb) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        faults = {run_control(THIS_HOST, MIB).fault for _ in range(10)}
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert faults == {None}


IN_A_TIGHT_SPACE = """
import resource
from pinprobe.probes.counters import read_mapped
from pinprobe.probes.in_process_control import run_control
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.reading import Reading

run_control(THIS_HOST)
mapped = read_mapped(THIS_HOST)
assert isinstance(mapped, Reading)
limit = mapped.bytes + 8 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
control = run_control(THIS_HOST, 256 * 2**20)
print(control.fault, "|", control.growth_fault)
"""


def test_where_no_control_is_to_be_had_that_is_its_fault_and_no_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_TIGHT_SPACE],
        env={"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    fault, growth_fault = done.stdout.strip().split(" | ")
    assert fault == "the mapping of the control is unreadable, because mmap of 0.250 GiB failed: Cannot allocate memory"
    assert "mmap of 0.250 GiB failed" in growth_fault


# Hosts that lie.


def test_a_host_that_tells_nothing_gives_no_measured_word(tmp_path: Path) -> None:
    control = run_control(HostTree(tmp_path), MIB)
    assert (
        control.fault == "the mapping of the control is unreadable, because /proc/self/maps: No such file or directory"
    )
    assert control.growth_fault == "unreadable, because /proc/self/statm: No such file or directory"


def test_counters_that_stand_still_are_found_out_and_the_mapping_speaks_on(tmp_path: Path) -> None:
    control = run_control(host_with(tmp_path, {"statm": "1000 500 200 1 0 100 0\n"}))
    assert control.fault is None
    assert control.growth_fault is not None


def test_a_smaps_from_another_time_is_found_out(tmp_path: Path) -> None:
    text = Path("/proc/self/smaps").read_text(errors="surrogateescape")
    control = run_control(host_with(tmp_path, {"smaps": text.encode(errors="replace").decode()}))
    assert control.fault == f"smaps of the control reads 0 B for {CONTROL_BYTES:,} B"
