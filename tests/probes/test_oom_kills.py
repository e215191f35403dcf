"""Death by the OOM killer is proven by the kernel's own counts, or it is not said."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.probes.host_tree import THIS_HOST, HostTree
from pinprobe.probes.oom_kills import OomKills, read_oom_kills

ChangedHost = Callable[[str, Mapping[str, "str | bytes | None"]], HostTree]
V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"


@pytest.mark.parametrize(
    ("host", "sources"),
    [
        (
            "cgroup_hybrid",
            [
                f"{V1}/pinprobe_fixture/inner/memory.oom_control",
                f"{V1}/pinprobe_fixture/memory.oom_control",
                f"{V1}/memory.oom_control",
            ],
        ),
        ("container_v1", [f"{V1}/memory.oom_control"]),
        # The top of a v2 hierarchy has no memory.events.
        ("cgroup_v2", [f"{V2}/a.slice/b.service/memory.events", f"{V2}/a.slice/memory.events"]),
        ("old_kernel", ["/proc/vmstat"]),
        ("gpu_process", ["/proc/vmstat"]),
        ("sandbox_gvisor", []),
    ],
)
def test_the_own_cgroups_counts_are_read_and_the_hosts_only_where_there_are_none(
    host: str, sources: list[str], saved_host: Callable[[str], HostTree]
) -> None:
    kills = read_oom_kills(saved_host(host))
    assert list(kills.by_source.items()) == [(source, 0) for source in sources]


@pytest.mark.parametrize(
    "text", ["", "oom_kill x\n", "oom_kill -1\n", "oom_kill_disable 1\nunder_oom 1\n", "oom_group_kill 7\n", "oom 7\n"]
)
def test_a_source_that_counts_no_kills_is_left_out_and_not_taken_for_zero(text: str, changed_host: ChangedHost) -> None:
    source = f"{V1}/memory.oom_control"
    assert source not in read_oom_kills(changed_host("container_v1", {source: text})).by_source


def test_a_kill_that_the_kernel_counted_since_is_proof(
    saved_host: Callable[[str], HostTree], changed_host: ChangedHost
) -> None:
    source = f"{V2}/a.slice/b.service/memory.events"
    before = read_oom_kills(saved_host("cgroup_v2"))
    text = "low 0\nhigh 9\nmax 12\noom 1\noom_kill 1\noom_group_kill 0\n"
    after = read_oom_kills(changed_host("cgroup_v2", {source: text, "/proc/vmstat": "oom_kill 1\n"}))
    # The host counted it as well; the nearest source says the most.
    assert after.proof_since(before) == f"{source}: oom_kill 0 -> 1"


@pytest.mark.parametrize(
    ("earlier", "later", "proof"),
    [
        ({"a": 3}, {"a": 3}, None),
        ({"a": 3}, {"a": 5}, "a: oom_kill 3 -> 5"),
        ({"a": 3}, {"a": 0}, None),  # a cgroup of the same name was made anew
        ({"a": 3, "b": 1}, {"a": 3, "b": 2}, "b: oom_kill 1 -> 2"),
        # A source that could not be read before may have counted long ago.
        ({}, {"a": 5}, None),
        ({"a": 3}, {}, None),
    ],
)
def test_only_a_count_that_rose_proves_a_kill(
    earlier: dict[str, int], later: dict[str, int], proof: str | None
) -> None:
    assert OomKills(later).proof_since(OomKills(earlier)) == proof


@given(
    vmstat=st.one_of(st.binary(max_size=80), st.from_regex(rb"\A(oom_kill|pgfault) [0-9x-]{0,22}\n?\Z")),
    memberships=st.one_of(st.binary(max_size=20), st.just(b"0::/\n")),
)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_any_bytes_give_a_count_that_stands_in_them_or_none(
    vmstat: bytes, memberships: bytes, fuzzed_host: Callable[[Mapping[str, bytes]], HostTree]
) -> None:
    mounts = b"26 22 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    kills = read_oom_kills(
        fuzzed_host({"/proc/vmstat": vmstat, "/proc/self/cgroup": memberships, "/proc/self/mountinfo": mounts})
    )
    assert set(kills.by_source) <= {"/proc/vmstat"}
    for count in kills.by_source.values():
        assert re.search(rb"oom_kill\s+0*%d\s*(\s|\Z)" % count, vmstat)


@given(data=st.data())
@settings(derandomize=True, deadline=None, max_examples=60)
def test_a_damaged_vmstat_proves_no_kill(
    data: st.DataObject,
    saved_host: Callable[[str], HostTree],
    fuzzed_host: Callable[[Mapping[str, str]], HostTree],
    damage: Callable[[st.DataObject, str], str],
) -> None:
    whole = saved_host("cgroup_hybrid").text("/proc/vmstat")
    assert isinstance(whole, str)
    after = read_oom_kills(fuzzed_host({"/proc/vmstat": damage(data, whole)}))
    assert after.proof_since(OomKills({"/proc/vmstat": 0})) is None


# From here on this host reads itself.

# Joins the cgroup and starts a child there that takes more than the limit, having offered itself to the OOM killer.
TOO_MUCH = """
import pathlib, subprocess, sys
from pinprobe.probes.host_tree import THIS_HOST
from pinprobe.probes.oom_kills import read_oom_kills

pathlib.Path(sys.argv[1], "cgroup.procs").write_text("0")
before = read_oom_kills(THIS_HOST)
hog = "import pathlib; pathlib.Path('/proc/self/oom_score_adj').write_text('1000'); held = b'x' * (256 << 20)"
code = subprocess.run([sys.executable, "-c", hog]).returncode
print(code, read_oom_kills(THIS_HOST).proof_since(before))
"""


def test_a_process_killed_in_a_real_cgroup_is_proven_by_that_cgroup(limited_cgroup: Callable[[int], Path]) -> None:
    if psutil.swap_memory().total:
        pytest.skip("with swap the limit is no end")
    folder = limited_cgroup(64 * 2**20)
    printed = subprocess.run(
        [sys.executable, "-c", TOO_MUCH, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    file = "memory.events" if (folder / "memory.events").exists() else "memory.oom_control"
    assert printed.strip() == f"-9 {folder / file}: oom_kill 0 -> 1"


def test_where_nobody_was_killed_nothing_is_proven() -> None:
    before = read_oom_kills(THIS_HOST)
    assert OomKills(dict(before.by_source)).proof_since(before) is None


def test_a_kill_elsewhere_on_the_host_proves_nothing_where_the_own_cgroup_counts(changed_host: ChangedHost) -> None:
    before = read_oom_kills(changed_host("cgroup_hybrid", {"/proc/vmstat": "oom_kill 40\n"}))
    after = read_oom_kills(changed_host("cgroup_hybrid", {"/proc/vmstat": "oom_kill 41\n"}))
    assert after.proof_since(before) is None
