"""The facts that travel with every result: read from saved hosts, and from this one against second sources."""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinprobe.probes.host_facts import ProcessFacts, read_host_facts
from pinprobe.probes.host_tree import HostTree
from pinprobe.probes.reading import Reading, Unreadable

ChangedHost = Callable[[str, Mapping[str, "str | bytes | None"]], HostTree]
LIMITS = "/proc/self/limits"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (
            "old_kernel",
            {
                "kernel": "5.10.0-32-amd64",
                "page_size_bytes": 4096,
                "memory_total": Reading(986_924 * 1024, "/proc/meminfo MemTotal"),
                "transparent_hugepages": "always",
                "shared_memory_hugepages": "never",
                "memlock_limit": "soft 8388608, hard 8388608",
                "cgroup": "0::/",
            },
        ),
        ("pages_64k", {"kernel": "6.1.0-50-powerpc64le", "page_size_bytes": 65536}),
        (
            "gpu_process",
            {"memlock_limit": "soft unlimited, hard unlimited", "cgroup": "0::/system.slice/engine.service"},
        ),
        ("cgroup_hybrid", {"transparent_hugepages": "madvise", "cgroup": "4:memory:/pinprobe_fixture/inner; 0::/"}),
    ],
)
def test_a_saved_host_gives_the_facts_its_texts_say(
    host: str, expected: dict[str, object], saved_host: Callable[[str], HostTree]
) -> None:
    facts = read_host_facts(saved_host(host))
    assert {name: getattr(facts, name) for name in expected} == expected


@pytest.mark.parametrize(
    "name", ["kernel", "transparent_hugepages", "shared_memory_hugepages", "memlock_limit", "cgroup", "driver"]
)
def test_what_a_sandbox_does_not_show_is_unreadable(name: str, saved_host: Callable[[str], HostTree]) -> None:
    fact = getattr(read_host_facts(saved_host("sandbox_gvisor")), name)
    assert isinstance(fact, Unreadable)
    assert fact.reason.endswith(": No such file or directory")


def test_the_driver_is_named_by_the_first_line_of_its_version(changed_host: ChangedHost) -> None:
    # As the saved process's README.json gives it.
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)"
    tree = changed_host(
        "old_kernel", {"/proc/driver/nvidia/version": f"{line}  \nGCC version:  gcc version 15.3.0 (GCC) \n"}
    )
    assert read_host_facts(tree).driver == line


@pytest.mark.parametrize("text", ["", "always madvise never\n", "[]\n"])
def test_a_setting_without_a_chosen_word_is_unreadable(text: str, changed_host: ChangedHost) -> None:
    tree = changed_host("old_kernel", {"/sys/kernel/mm/transparent_hugepage/enabled": text})
    assert isinstance(read_host_facts(tree).transparent_hugepages, Unreadable)


@pytest.mark.parametrize("name", ["/proc/sys/kernel/osrelease", "/proc/self/cgroup"])
def test_an_empty_file_is_unreadable_and_not_an_empty_fact(name: str, changed_host: ChangedHost) -> None:
    facts = read_host_facts(changed_host("old_kernel", {name: ""}))
    assert isinstance(facts.kernel if "osrelease" in name else facts.cgroup, Unreadable)


@pytest.mark.parametrize(
    ("memberships", "fact"),
    [
        ("9:name=systemd:/\n4:memory:/a\n0::/\n", "4:memory:/a; 0::/"),
        ("4:hugetlb,memory:/a\n", "4:hugetlb,memory:/a"),
        ("4:memory,hugetlb:/a\n", "4:memory,hugetlb:/a"),
        ("3:cpuset:/a,memory\n0::/\n", "0::/"),
        ("3:cpuset:/a:memory:b\n0::/\n", "0::/"),
    ],
)
def test_of_the_cgroups_only_those_that_may_hold_memory_are_kept(
    memberships: str, fact: str, changed_host: ChangedHost
) -> None:
    assert read_host_facts(changed_host("old_kernel", {"/proc/self/cgroup": memberships})).cgroup == fact


@pytest.mark.parametrize(
    "line", ["", "Max locked memory \n", "Max locked memory 8388608 \n", "Max locked memory x y bytes\n"]
)
def test_a_memlock_line_that_lost_a_column_takes_none_from_the_next_line(line: str, changed_host: ChangedHost) -> None:
    text = f"Max file size unlimited unlimited bytes\n{line}Max address space 4096 8192 bytes\n"
    assert isinstance(read_host_facts(changed_host("old_kernel", {LIMITS: text})).memlock_limit, Unreadable)


def test_the_soft_limit_comes_first(changed_host: ChangedHost) -> None:
    line = "Max locked memory         65536                unlimited            bytes     \n"
    assert read_host_facts(changed_host("old_kernel", {LIMITS: line})).memlock_limit == "soft 65536, hard unlimited"


@given(data=st.data())
@settings(derandomize=True, deadline=None, max_examples=40)
def test_damaged_limits_read_as_they_were_or_not_at_all(
    data: st.DataObject,
    saved_host: Callable[[str], HostTree],
    fuzzed_host: Callable[[Mapping[str, str]], HostTree],
    damage: Callable[[st.DataObject, str], str],
) -> None:
    whole = saved_host("old_kernel").text(LIMITS)
    assert isinstance(whole, str)
    fact = read_host_facts(fuzzed_host({LIMITS: damage(data, whole)})).memlock_limit
    assert isinstance(fact, Unreadable) or fact == "soft 8388608, hard 8388608"


@given(garbage=st.binary(max_size=60))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_no_bytes_in_any_file_make_it_fail(
    garbage: bytes, fuzzed_host: Callable[[Mapping[str, bytes]], HostTree]
) -> None:
    names = [
        *(f"/proc/self/{name}" for name in ("cgroup", "mountinfo", "limits", "status", "statm", "oom_score_adj")),
        *("/proc/meminfo", "/proc/zoneinfo", "/proc/sys/kernel/osrelease", "/proc/driver/nvidia/version"),
        *(f"/sys/kernel/mm/transparent_hugepage/{name}" for name in ("enabled", "shmem_enabled")),
    ]
    facts = read_host_facts(fuzzed_host(dict.fromkeys(names, garbage)))
    assert isinstance(facts.memory_total, Unreadable)
    assert isinstance(facts.memlock_limit, Unreadable)
    assert facts.counters.status is False


def test_only_the_settings_of_the_pinned_allocator_that_are_set_travel(
    saved_host: Callable[[str], HostTree], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    assert read_host_facts(saved_host("old_kernel")).torch_settings == {}
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "pinned_use_cuda_host_register:True")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert read_host_facts(saved_host("old_kernel")).torch_settings == {
        "PYTORCH_ALLOC_CONF": "pinned_use_cuda_host_register:True",
        "PYTORCH_CUDA_ALLOC_CONF": "",
    }


def test_a_missing_torch_is_a_fact_with_its_reason(
    saved_host: Callable[[str], HostTree], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert read_host_facts(saved_host("old_kernel")).torch == Unreadable("torch is not installed")


# From here on this host reads itself.


def test_the_facts_of_this_host_agree_with_the_standard_library_and_psutil() -> None:
    facts = read_host_facts()
    assert facts.kernel == os.uname().release
    assert facts.machine == os.uname().machine
    assert facts.python == platform.python_version()
    assert facts.page_size_bytes == resource.getpagesize()
    assert isinstance(facts.memory_total, Reading)
    assert facts.memory_total.bytes == psutil.virtual_memory().total
    limits = (
        "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
        for limit in resource.getrlimit(resource.RLIMIT_MEMLOCK)
    )
    assert facts.memlock_limit == "soft {}, hard {}".format(*limits)


def test_the_facts_of_this_process_agree_with_the_kernel() -> None:
    process = read_host_facts().process
    assert isinstance(process, ProcessFacts)
    assert process.user == psutil.Process().username()
    assert process.effective_cpu_count == len(os.sched_getaffinity(0))
    assert process.oom_score_adj == Path("/proc/self/oom_score_adj").read_text().strip()


def test_gathering_the_facts_imports_neither_torch_nor_a_driver() -> None:
    script = (
        "import sys; from pinprobe.probes.host_facts import read_host_facts; read_host_facts(); print(*sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert not re.search(r"(?m)(^|\s)(torch|pynvml|cuda|numpy|click|rich)(\s|$)", printed)
