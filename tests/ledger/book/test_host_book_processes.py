"""The book among real processes that race, fork, are killed, and live in other namespaces."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import pinprobe as package
from pinprobe.ledger.book.book_entry import BookRow
from pinprobe.ledger.book.host_book import HostBook
from tests.ledger.book_process import PRICE, UNIT, BookProcess, book_processes

NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "book"
    folder.mkdir()
    return folder


def booked(folder: Path) -> dict[str, tuple[int, int]]:
    """What each live process has booked and pending, by its label."""
    return {entry.label: (entry.booked_bytes, entry.pending_bytes) for entry in HostBook(folder).read().entries}


def is_locked(path: Path) -> bool:
    """Ask the kernel whether anybody holds a lock on a file."""
    opened = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(opened)
    return False


def files_of(process: str, folder: Path) -> set[str]:
    return {path.name.removeprefix(process) for path in folder.iterdir() if path.name.startswith(process)}


# -- the race


def race(folder: Path, held: Path, rounds: int) -> None:
    held.mkdir()
    with book_processes(8, folder) as workers:
        for number in range(rounds):
            for worker in workers:
                worker.tell("reserve", 4, held)
            got = [worker.answer() for worker in workers]
            # The memory is the files that they made, and five is what fits.
            assert (sum(got), len(list(held.iterdir()))) == (5, 5), f"round {number}: {got}"
            entries = HostBook(folder).read().entries
            assert sorted(entry.booked_bytes for entry in entries) == [0] * 3 + [UNIT] * 5
            for worker in workers:
                worker.tell("free", held)
            assert [worker.answer() for worker in workers] == [None] * 8


def test_of_eight_that_race_for_room_for_five_exactly_five_get_it(folder: Path, tmp_path: Path) -> None:
    race(folder, tmp_path / "held", rounds=60)


@pytest.mark.slow
def test_of_eight_that_race_a_thousand_times_exactly_five_get_it_each_time(folder: Path, tmp_path: Path) -> None:
    race(folder, tmp_path / "held", rounds=1000)


# -- death


def test_who_is_killed_between_pending_and_booked_leaves_nothing_and_makes_room(folder: Path) -> None:
    with book_processes(4, folder) as (first, second, third, waiting):
        assert [process.ask("pend") for process in (first, second, third)] == [True] * 3
        waiting.tell("pend")  # it does not fit, and waits, since others are pending
        time.sleep(0.3)
        assert booked(folder) == {"rank 3": (0, 0), **{f"rank {n}": (0, PRICE) for n in range(3)}}
        name, _ = second.ask("who")
        second.kill()
        assert waiting.answer() is True
        assert booked(folder) == {f"rank {n}": (0, PRICE) for n in (0, 2, 3)}
        assert files_of(name, folder) == set()
        for process in (first, third, waiting):
            process.ask("settle")
        assert booked(folder) == {f"rank {n}": (UNIT, 0) for n in (0, 2, 3)}


@pytest.mark.parametrize("seed", range(3))
def test_of_eight_that_race_three_are_killed_and_the_five_others_all_get_it(
    folder: Path, tmp_path: Path, seed: int
) -> None:
    held = tmp_path / "held"
    held.mkdir()
    with book_processes(8, folder) as workers:
        names = [worker.ask("who")[0] for worker in workers]
        for worker in workers:
            worker.tell("reserve", 400, held)
        time.sleep(0.1)  # some are between pending and booked now, and none is beyond
        killed = random.Random(seed).sample(range(8), 3)
        for number in killed:
            workers[number].kill()
        alive = [number for number in range(8) if number not in killed]
        assert [workers[number].answer() for number in alive] == [True] * 5
        assert booked(folder) == {f"rank {number}": (UNIT, 0) for number in alive}
        assert [files_of(names[number], folder) for number in killed] == [set()] * 3


def test_who_ends_as_programs_do_takes_his_entry_along(folder: Path) -> None:
    with book_processes(1, folder) as (process,):
        process.ask("write", 5)
        process.end()
        # Before anybody looks: it was not left for others to clear up.
        assert [path.name for path in folder.iterdir()] == ["book.lock"]


def test_who_is_killed_with_the_lock_in_his_hands_leaves_it_free(folder: Path) -> None:
    with book_processes(2, folder) as (holder, other):
        holder.ask("lock_and_hang")
        assert is_locked(folder / "book.lock")
        other.tell("others")
        holder.kill()
        assert other.answer() == [[], []]


# -- forks


@pytest.fixture
def gate() -> Iterator[tuple[int, int]]:
    """A pipe: children live until its writing end is closed."""
    reader, writer = os.pipe()
    try:
        yield reader, writer
    finally:
        for end in (reader, writer):
            with contextlib.suppress(OSError):
                os.close(end)


def test_children_forked_while_the_lock_is_held_keep_neither_it_nor_their_parents_life(
    folder: Path, gate: tuple[int, int]
) -> None:
    reader, writer = gate
    with book_processes(1, folder, inherited=[reader]) as (parent,):
        parent.ask("write", 7)
        name, _ = parent.ask("who")
        children = parent.ask("fork_while_locked", 60, reader)
        assert len(children) == 60
        # The kernel's word on what the children have open.
        for child in children:
            held = [link.readlink() for link in Path(f"/proc/{child}/fd").iterdir()]
            assert not [path for path in held if path.suffix in (".alive", ".lock")]
        assert not is_locked(folder / "book.lock")
        assert is_locked(folder / f"{name}.alive")
        assert booked(folder) == {"rank 0": (7, 0)}
        parent.kill()
        assert all(Path(f"/proc/{child}").exists() for child in children)
        assert not parent.is_silent()
        assert not is_locked(folder / f"{name}.alive")
        assert booked(folder) == {}
        assert files_of(name, folder) == set()
        os.close(writer)
        parent.wait_for_silence()


def test_a_child_forked_by_a_holder_that_is_then_killed_does_not_hold_the_lock(
    folder: Path, gate: tuple[int, int]
) -> None:
    reader, writer = gate
    with book_processes(1, folder, inherited=[reader]) as (parent,):
        parent.ask("lock_and_hang", reader)
        assert is_locked(folder / "book.lock")
        parent.kill()
        assert not is_locked(folder / "book.lock")
        # The child was there all the time: it holds the pipe that its parent answered through.
        assert not parent.is_silent()
        os.close(writer)
        parent.wait_for_silence()


def test_a_copy_of_the_locks_descriptor_does_not_keep_the_lock(folder: Path) -> None:
    # As a child has one between fork and exec: closing ours is not enough, it has to be unlocked.
    book = HostBook(folder)
    with book.locked():
        (opened,) = [
            int(link.name)
            for link in Path("/proc/self/fd").iterdir()
            if link.is_symlink() and link.readlink() == folder / "book.lock"
        ]
        copy = os.dup(opened)
    try:
        assert not is_locked(folder / "book.lock")
    finally:
        os.close(copy)
        book.close()


def test_a_forked_child_that_uses_the_book_is_a_process_of_its_own(folder: Path) -> None:
    with book_processes(2, folder) as (parent, witness):
        parent.ask("write", 100)
        before, _ = parent.ask("who")
        mine, childs, others, everybody = parent.ask("fork_and_write", 30)
        assert mine == before
        assert childs != mine
        # The child saw its parent's rows as another's, and beside its own.
        assert [entry[2] for entry in others[0]] == [100]
        assert sorted(entry[2] for entry in everybody[0]) == [30, 100]
        # It has ended without a word, and its parent's entry is what it was.
        assert [entry[2] for entry in witness.ask("others")[0]] == [100]
        assert files_of(childs, folder) == set()
        assert files_of(mine, folder) == {".alive", ".json"}


# -- namespaces, users, file systems


def in_namespace(*flags: str) -> list[str]:
    """What starts a program in namespaces of its own, or a skip with the reason why that can't be done here."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare to make a namespace with")
    before = ["unshare", *flags] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", *flags]
    tried = subprocess.run([*before, "true"], capture_output=True, text=True, check=False, timeout=60)
    if tried.returncode:
        pytest.skip(f"no such namespace can be made here: {tried.stderr.strip()[:200]}")
    return before


def test_processes_of_other_pid_namespaces_are_seen_alive_and_seen_to_die(folder: Path) -> None:
    before = in_namespace("--pid", "--fork", "--kill-child", "--mount-proc")
    mine = HostBook(folder, "outside")
    with mine, book_processes(2, folder, before) as (first, second):
        mine.write([BookRow("tenant", 3, 3)])
        for process in (first, second):
            process.ask("write", 4)
        # Both are number 1 in their namespaces, and no such number means anything here.
        assert [process.ask("who")[1] for process in (first, second)] == [1, 1]
        everybody = {"outside": (3, 0), "rank 0": (4, 0), "rank 1": (4, 0)}
        assert booked(folder) == everybody
        # From within they see each other, and what has no number there at all.
        assert {entry[0] for entry in first.ask("read")[0]} == set(everybody)
        assert {entry[0] for entry in second.ask("others")[0]} == {"outside", "rank 0"}
        first.kill()
        first.wait_for_silence()
        assert booked(folder) == {"outside": (3, 0), "rank 1": (4, 0)}
        assert {entry[0] for entry in second.ask("read")[0]} == {"outside", "rank 1"}


def test_on_a_full_file_system_the_entry_stays_what_it_was_and_one_line_says_so(folder: Path) -> None:
    mount = f'mount -t tmpfs -o size=64k none "{folder}" && exec "$@"'
    before = [*in_namespace("--mount"), "sh", "-c", mount, "sh"]
    tried = subprocess.run([*before, "true"], capture_output=True, text=True, check=False, timeout=60)
    if tried.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {tried.stderr.strip()[:200]}")
    with book_processes(1, folder, before) as (process,):
        inside = Path(f"/proc/{process.pid}/root{folder}")
        process.ask("write", 11)
        name, _ = process.ask("who")
        entry = inside / f"{name}.json"
        kept = entry.read_bytes()
        process.ask("fill")
        said = process.ask("write", *range(20))
        assert said["kind"] == "CouldNotMeasure"
        assert "No space left on device" in said["line"]
        assert "--book-dir" in said["line"]
        assert len(said["line"].splitlines()) == 1
        # The old entry whole, and no half of the new one.
        assert entry.read_bytes() == kept
        assert files_of(name, inside) == {".alive", ".json"}
        process.ask("close")
        process.ask("fill")  # the pages that the entry had
        assert process.ask("write", 12)["kind"] == "CouldNotMeasure"
        assert {path.name for path in inside.iterdir()} == {"book.lock", "filler"}
        process.ask("unfill")
        assert process.ask("write", 13) is None
        assert process.ask("read")[0][0][2] == 13


@pytest.fixture
def sticky() -> Iterator[Path]:
    """A folder that every user may use and none may clear of another's files, as /tmp is."""
    # Not below pytest's own folder, which is its user's alone.
    folder = Path(tempfile.mkdtemp(prefix="pinprobe-sticky-"))
    try:
        folder.chmod(0o1777)
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("mask", ["022", "077"])
@pytest.mark.parametrize("first_is_root", [True, False], ids=["root first", "the user first"])
def test_root_and_an_ordinary_user_share_a_sticky_folder(sticky: Path, mask: str, first_is_root: bool) -> None:
    if os.geteuid():
        pytest.skip("needs root, to become another user")
    with book_processes(3, sticky) as (root, user, other):
        for process in (root, user, other):
            process.ask("umask", mask)
        user.ask("become", NOBODY)
        order = [root, user] if first_is_root else [user, root]
        for process in order:
            assert process.ask("write", 8) is None
        names = [process.ask("who")[0] for process in (root, user)]
        assert [(sticky / f"{name}.json").stat().st_uid for name in names] == [0, NOBODY]
        for process in (root, user):
            assert [entry[2] for entry in process.ask("read")[0]] == [8, 8]
            assert [entry[2] for entry in process.ask("others")[0]] == [8]
        # Of root's dead, the user can't clear up, and does not count them.
        root.kill()
        assert user.ask("others") == [[], []]
        assert files_of(names[0], sticky) == {".alive", ".json"}
        # Of the user's dead, root can.
        user.kill()
        assert other.ask("others") == [[], []]
        assert files_of(names[0], sticky) == files_of(names[1], sticky) == set()


def test_what_another_user_damaged_and_may_not_be_moved_is_unreadable_and_blocks_nobody(sticky: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root, to become another user")
    with book_processes(2, sticky) as (root, user):
        user.ask("become", NOBODY)
        root.ask("write", 8)
        name, _ = root.ask("who")
        (sticky / f"{name}.json").write_bytes(b"{")
        for _ in range(2):
            entries, unreadable = user.ask("others")
            assert entries == []
            assert [name in line for line in unreadable] == [True]
        assert user.ask("write", 9) is None
        root.ask("write", 8)
        assert sorted(entry[2] for entry in user.ask("read")[0]) == [8, 9]


# -- the default folder


def with_own_shared_memory(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a process whose /dev/shm, temporary files and runtime folder are its own, empty ones."""
    shell = 'mount -t tmpfs none /dev/shm && mkdir /dev/shm/t /dev/shm/r && exec "$@"'
    before = [*in_namespace("--mount"), "sh", "-c", shell, "sh"]
    tried = subprocess.run([*before, "true"], capture_output=True, text=True, check=False, timeout=60)
    if tried.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {tried.stderr.strip()[:200]}")
    head = "import os; from pathlib import Path; from pinprobe.ledger.book.host_book import *; me = os.geteuid()\n"
    places = [f"PYTHONPATH={Path(package.__file__).resolve().parent.parent}"]
    places += ["TMPDIR=/dev/shm/t", "XDG_RUNTIME_DIR=/dev/shm/r", "PINPROBE_BOOK_DIR="]
    return subprocess.run(
        [*before, "env", *places, sys.executable, "-c", head + script],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_the_default_folder_is_this_users_alone_and_made_at_the_first_use() -> None:
    done = with_own_shared_memory("""
book = HostBook()
assert book.folder == Path(f"/dev/shm/pinprobe-{me}"), book.folder
assert not book.folder.exists()
assert book.read().entries == ()
assert not book.folder.exists()
book.write([])
assert oct(book.folder.stat().st_mode) == "0o40700"
assert book.reach == f"processes of user {me} that see /dev/shm/pinprobe-{me}, which is theirs alone (1 live)"
""")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("trap", "reason"),
    [
        ("place.symlink_to('/dev/shm/t')", "is a symbolic link"),
        ("place.touch()", "is not a folder"),
        ("place.mkdir(); os.chown(place, 1, 1)", "belongs to user 1"),
        # Open to all and sticky, and still its owner's to do with as he likes.
        ("place.mkdir(); place.chmod(0o1777); os.chown(place, 1, 1)", "belongs to user 1"),
    ],
    ids=["a link", "a file", "another user's", "another user's, sticky"],
)
def test_a_default_folder_that_is_a_trap_is_passed_over(trap: str, reason: str) -> None:
    if os.geteuid() and "chown" in trap:
        pytest.skip("needs root, to make another user's folder")
    done = with_own_shared_memory(f"""
traps = [Path(f"/dev/shm/pinprobe-{{me}}"), Path("/dev/shm/r/pinprobe"), Path(f"/dev/shm/t/pinprobe-{{me}}")]
for place, then in zip(traps, [*traps[1:], None]):
    {trap}
    if then is not None:
        assert default_book_folder() == then, default_book_folder()
try:
    HostBook()
except Exception as error:
    print(type(error).__name__, error)
""")
    assert done.stderr == ""
    assert done.stdout.startswith("BadRequest there is no folder for the host's book: ")
    assert done.stdout.count(reason) == 3
    assert len(done.stdout.splitlines()) == 1


def test_a_chosen_folder_is_never_exchanged_for_another_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tmp_path / "no" / "such" / "parent"
    monkeypatch.setenv("PINPROBE_BOOK_DIR", str(chosen))
    with pytest.raises(Exception, match="does not exist") as raised:
        HostBook()
    assert str(chosen) in str(raised.value)


def test_an_entry_is_whole_json_at_every_moment(folder: Path) -> None:
    # Read as the file system has it, while another process replaces it as fast as it can.
    with book_processes(1, folder) as (process,):
        process.ask("write", 1)
        name, _ = process.ask("who")
        sizes = set()
        for count in range(1, 200):
            process.tell("write", *range(count % 50 + 1))
            sizes.add(len(json.loads((folder / f"{name}.json").read_bytes())["rows"]))
            process.answer()
        assert len(sizes) > 10


def test_a_process_that_never_answers_is_noticed(folder: Path) -> None:
    # Without this, tests above could pass because their process had ended.
    process = BookProcess(folder)
    try:
        assert process.answer() == "ready"
        process.kill()
        with pytest.raises(AssertionError, match="has ended"):
            process.answer()
    finally:
        process.close()
