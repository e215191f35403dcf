from __future__ import annotations

import pytest

from pinprobe.probes.allowance import allow
from pinprobe.probes.errors import CouldNotMeasure
from pinprobe.probes.headroom import Headroom, HeadroomSource
from pinprobe.probes.reading import Reading, Unreadable

GIB = 2**30
UNREADABLE = Headroom((HeadroomSource("MemAvailable", Unreadable("/proc/meminfo: No such file or directory")),))
CGROUP = HeadroomSource("memory cgroup v1 /box", Reading(3 * GIB, "memory.limit_in_bytes"))
HOST = HeadroomSource("MemAvailable", Reading(76 * GIB, "meminfo"))


def test_the_binding_source_is_shared_and_named() -> None:
    allowance = allow(Headroom((HOST, CGROUP)))
    assert allowance.bytes == 2 * GIB
    assert allowance.origin == "67% of the 3.000 GiB that memory cgroup v1 /box leaves"


def test_a_bound_of_the_callers_own_only_lowers_it() -> None:
    assert allow(Headroom((HOST,)), 0.5, at_most_bytes=GIB).bytes == GIB
    assert allow(Headroom((CGROUP,)), 0.5, at_most_bytes=40 * GIB).bytes == 1.5 * GIB


def test_an_unreadable_headroom_is_no_licence() -> None:
    with pytest.raises(CouldNotMeasure, match="--at-most"):
        allow(UNREADABLE)
    assert allow(UNREADABLE, at_most_bytes=GIB).bytes == GIB


def test_a_request_beyond_it_is_refused_with_both_figures() -> None:
    with pytest.raises(CouldNotMeasure, match=r"asks for 2\.500 GiB, and 2\.000 GiB may be taken \(67% of"):
        allow(Headroom((CGROUP,))).refuse_beyond(int(2.5 * GIB), "the probe")
