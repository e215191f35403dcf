"""Safeguards that must not be removed unseen: each is taken out of a copy of the code, and the tests have to notice.

A row names the file, what is taken out, what stands there then, and the test that fails for it. Where that test drives
at random it is the long run, which ends with the first failure: a short one may miss what it has few tries to find.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

STATEFUL = "tests/ledger/test_ledger_stateful.py::test_booked_is_never_below_resident_in_a_long_run"

MUTANTS = {
    "the block check of a hit": (
        "probes/walk.py",
        "if cost.block.bytes < cost.asked_bytes:",
        "if False:",
        "tests/probes/test_walk.py::test_blocks_smaller_than_their_requests_are_broken_promises_and_no_staircase",
    ),
    "the address check of a hit": (
        "probes/walk.py",
        "is_same = cost.address == kept_address and cost.block == kept_block",
        "is_same = cost.block == kept_block",
        "tests/probes/test_walk.py::test_a_hit_needs_the_address_no_growth_and_a_block_that_holds_the_ask",
    ),
    "the control of a sweep": (
        "probes/walk.py",
        "return self.control_fault is None",
        "return True",
        "tests/probes/test_walk.py::test_a_control_that_lies_by_five_per_cent_voids_the_sweep",
    ),
    "the control of a probe": (
        "probes/control.py",
        "if not control.resident.within(expected, margin_bytes(control.asked_bytes, page_size_bytes)):",
        "if False:",
        "tests/probes/test_trial.py::test_a_control_that_lies_by_five_per_cent_makes_the_probe_invalid",
    ),
    "that a missing control voids a probe": (
        "probes/control.py",
        'return "no control was measured"',
        "return None",
        "tests/probes/test_trial.py::test_without_a_control_nothing_is_proven",
    ),
    "the emptying of the cache at a new block": (
        "probes/walk.py",
        "            bench.empty_cache()\n        bench.release()",
        "            pass\n        bench.release()",
        "tests/probes/test_walk.py::test_a_power_of_two_cache_shows_the_known_cliffs_and_touches_each_block_once",
    ),
    "that what an allocator kept stays booked": (
        "ledger/bookkeeping.py",
        "        if is_still_there(self._tree, backing):\n            return True\n",
        "",
        STATEFUL,
    ),
    "that a mapping is booked at its own size": (
        "ledger/mapping_book.py",
        "return max(self.backing.size_bytes, self.parts_bytes)",
        "return self.parts_bytes",
        STATEFUL,
    ),
    "that a mapping is shared out among its holders": (
        "ledger/mapping_book.py",
        "whole * part // self.parts_bytes",
        "whole",
        STATEFUL,
    ),
    "the floor at the ask": (
        "ledger/taking.py",
        "unseen = max(0, asked - sum(part_bytes for _, part_bytes in parts))",
        "unseen = 0",
        STATEFUL,
    ),
    "that unreadable sources are never zero": (
        "probes/reading.py",
        "        if isinstance(other, Unreadable):\n            return other",
        "        if isinstance(other, Unreadable):\n            return self",
        "tests/probes/test_reading.py",
    ),
    "that a hand-out makes its slot's ticket stale": (
        "ledger/tenants/savepoint_ring.py",
        "        self._generations[slot] += 1\n        self._hand_outs += 1",
        "        self._hand_outs += 1",
        "tests/ledger/tenants/test_savepoint_ring.py::test_a_ticket_is_stale_once_its_slot_was_handed_out_again",
    ),
    "that a copy is not staged before its fence is done": (
        "ledger/tenants/savepoint_ring.py",
        "return self.is_live(ticket) and fence.is_done()",
        "return self.is_live(ticket)",
        "tests/ledger/tenants/test_copy_out.py::test_a_savepoint_is_not_copied_before_its_fence_is_done",
    ),
    "the second look at the ticket, after the copy": (
        "ledger/tenants/copy_out.py",
        "        if self._ring.is_live(work.ticket):\n",
        "        if True:\n",
        "tests/ledger/tenants/test_copy_out.py"
        "::test_a_slot_that_is_handed_out_during_the_copy_loses_the_race_and_its_bytes_are_thrown_away",
    ),
    "a reader's hold, where an entry is evicted": (
        "ledger/tenants/pool_books.py",
        "        if entry.is_here:\n            self.busy.add(entry.key.digest)",
        "        if False:\n            self.busy.add(entry.key.digest)",
        "tests/ledger/tenants/test_pool_eviction.py"
        "::test_an_entry_that_is_being_read_stays_until_it_is_let_go_and_its_region_is_not_used_meanwhile",
    ),
    "a reader's hold, where an entry goes": (
        "ledger/tenants/pool_books.py",
        "        if not entry.readers:\n            self.supply.free(entry.place)",
        "        if True:\n            self.supply.free(entry.place)",
        "tests/ledger/tenants/test_pool_eviction.py"
        "::test_what_goes_while_it_is_being_read_stays_readable_and_its_region_is_free_afterwards",
    ),
    "that an entry is valued anew when its ancestor goes": (
        "ledger/tenants/policies/chain.py",
        "            follower.ancestor = entry.ancestor\n            self._rank(follower)\n",
        "            follower.ancestor = entry.ancestor\n",
        "tests/ledger/tenants/policies/test_chain.py"
        "::test_an_entry_whose_ancestor_went_is_worth_all_that_it_covers_now",
    ),
    "that an entry's cover passes on when it goes": (
        "ledger/tenants/policies/prefix_tree.py",
        "        if node.parent is not None:\n            self._add_cover(node.parent, node.cover)",
        "        pass",
        "tests/ledger/tenants/policies/test_prefix_tree.py"
        "::test_what_an_entry_covered_passes_to_its_ancestor_when_it_goes",
    ),
    "the checksum of what comes back from disk": (
        "ledger/tenants/restore.py",
        "self._address, size_bytes, self._check_wanted) != header.row_hash:",
        "self._address, size_bytes, self._check_wanted) is None:",
        "tests/ledger/tenants/test_overflow_tier.py"
        "::test_a_file_that_is_not_what_was_written_is_lost_and_counted_and_never_served",
    ),
    "that a pool's bound is checked before a region is taken": (
        "ledger/tenants/region_supply.py",
        "if not self.is_open or self.held >= self.bound:",
        "if not self.is_open or self.held > self.bound:",
        "tests/ledger/tenants/test_pool_and_overflow_stateful.py"
        "::test_bytes_are_right_bounds_hold_and_nothing_is_lost_uncounted_for_longer",
    ),
    "that an overflow's bound is checked before a file is written": (
        "ledger/tenants/disk_overflow.py",
        "            self._evict(shortage, attempt.value, WriteEnd.NOT_WORTH_IT)\n        try:\n",
        "            pass\n        try:\n",
        "tests/ledger/tenants/test_overflow_tier.py::test_no_bytes_are_set_aside_that_the_bound_has_no_room_for",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_tests_notice_when_a_safeguard_is_gone(name: str, tmp_path: Path) -> None:
    place, taken_out, stands_there, test = MUTANTS[name]
    for folder in ("probes", "ledger", "cli", "configs", "src", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("fixtures"))
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    source = (tmp_path / place).read_text(encoding="utf-8")
    assert source.count(taken_out) == 1, f"{place} no longer reads {taken_out!r}"
    (tmp_path / place).write_text(source.replace(taken_out, stands_there), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "-m", "", test]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path / 'src'}:{tmp_path}"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    # 1: tests ran and failed. Any other code would mean that they did not run, which proves nothing.
    assert done.returncode == 1, done.stdout + done.stderr
