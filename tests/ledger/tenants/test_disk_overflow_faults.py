"""What a disk, a file system, a limit or a person does to the overflow, each with the real thing.

Never a crash, never wrong bytes, never a file that is left behind, and the reason is always told.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinprobe.ledger.tenants import row_transfer
from pinprobe.ledger.tenants.disk_overflow import DiskOverflow
from pinprobe.ledger.tenants.overflow_file import Loss
from pinprobe.ledger.tenants.overflow_outcome import WriteEnd
from pinprobe.ledger.tenants.restore import RestoreState, Stage
from pinprobe.ledger.tenants.row_transfer import RowFile, write_row
from tests.ledger.book.test_host_book_processes import in_namespace
from tests.ledger.tenants.open_files import open_files
from tests.ledger.tenants.overflow_bench import (
    LARGE_FILE_BYTES,
    PATIENCE_SECONDS,
    SMALL,
    SMALL_FILE_BYTES,
    Pages,
    files,
    key,
    our_threads,
    row,
    wait_for,
)
from tests.ledger.tenants.overflow_process import OverflowProcess, overflow_processes
from tests.probes.allocators.fresh_process import in_fresh_process
from tests.probes.allocators.kernel_word import MIB

NOBODY = 65534
FUZZED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "overflow"


@pytest.fixture
def overflow(folder: Path) -> Iterator[DiskOverflow]:
    descriptors = open_files()
    overflow = DiskOverflow(folder, SMALL, 4 * SMALL_FILE_BYTES)
    yield overflow
    assert overflow.close()
    wait_for(lambda: not our_threads())
    assert open_files() == descriptors


@pytest.fixture
def pages() -> Iterator[Pages]:
    pages = Pages()
    yield pages
    pages.unmap()


def stored(overflow: DiskOverflow, pages: Pages, number: int = 1) -> Path:
    """Write a savepoint; return its file."""
    outcome = overflow.write(key(number), number, pages.holding(number), 1.0)
    assert outcome.end is WriteEnd.WRITTEN, outcome
    (file,) = (file for file in files(overflow.folder) if file.name.startswith(key(number).hex()))
    return file


def restored(overflow: DiskOverflow, pages: Pages, number: int = 1) -> RestoreState:
    pages.content = bytes(pages.size_bytes)
    restore = overflow.begin_restore(key(number), pages.address)
    assert restore is not None
    assert restore.wait(PATIENCE_SECONDS)
    return restore.collect()


def is_lost(overflow: DiskOverflow, pages: Pages, loss: Loss) -> bool:
    """Whether it ends as lost for this reason, is counted so, told in a line, and there no more."""
    before = overflow.stats().lost[loss.value]
    state = restored(overflow, pages)
    assert state.stage is Stage.LOST, state
    assert state.lost is loss, state
    assert state.fault is not None
    assert state.fault.text.isprintable()
    assert key(1) not in overflow
    assert overflow.begin_restore(key(1), pages.address) is None
    return overflow.stats().lost[loss.value] == before + 1


def test_a_whole_file_of_the_same_tokens_that_another_process_wrote_is_not_served(
    overflow: DiskOverflow, pages: Pages, tmp_path: Path
) -> None:
    # Its weights may be others, so that its row of the same tokens is another; its checksums are right.
    other = DiskOverflow(tmp_path / "other", SMALL, 4 * SMALL_FILE_BYTES)
    assert other.write(key(1), 1, pages.holding(2), 1.0).is_written
    file = stored(overflow, pages, 1)
    shutil.copyfile(files(other.folder)[0], file)
    assert is_lost(overflow, pages, Loss.FOREIGN)
    assert other.close()


# -- files that are not what they were


@FUZZED
@given(st.one_of(st.integers(0, 8 * 4096 - 1), st.integers(0, 8 * SMALL_FILE_BYTES - 1)))
def test_a_bit_flipped_anywhere_in_a_file_is_seen_and_the_file_deleted(
    overflow: DiskOverflow, pages: Pages, bit: int
) -> None:
    file = stored(overflow, pages)
    with file.open("r+b") as opened:
        opened.seek(bit // 8)
        byte = opened.read(1)[0]
        opened.seek(bit // 8)
        opened.write(bytes([byte ^ 1 << bit % 8]))
    assert is_lost(overflow, pages, Loss.FOREIGN if bit < 64 else Loss.VERSION if bit < 96 else Loss.CHECKSUM)
    assert not file.exists()


@FUZZED
@given(st.one_of(st.integers(0, SMALL_FILE_BYTES - 1), st.sampled_from([0, 4095, 4096, 4097, SMALL_FILE_BYTES - 1])))
def test_a_file_cut_anywhere_is_seen_and_deleted(overflow: DiskOverflow, pages: Pages, length: int) -> None:
    file = stored(overflow, pages)
    os.truncate(file, length)
    assert is_lost(overflow, pages, Loss.CUT)
    assert not file.exists()


def test_a_hole_where_a_row_was_is_no_row_of_zeros(overflow: DiskOverflow, pages: Pages) -> None:
    file = stored(overflow, pages)
    os.truncate(file, 8192)
    os.truncate(file, SMALL_FILE_BYTES)
    assert is_lost(overflow, pages, Loss.CHECKSUM)


def test_the_bytes_of_another_savepoint_are_never_served(overflow: DiskOverflow, pages: Pages) -> None:
    file, other = stored(overflow, pages, 1), stored(overflow, pages, 2)
    file.write_bytes(other.read_bytes())
    assert is_lost(overflow, pages, Loss.FOREIGN)
    assert not file.exists()
    assert restored(overflow, pages, 2).stage is Stage.READY
    assert pages.content == row(2)


def test_a_row_of_another_savepoint_behind_the_right_header_is_never_served(
    overflow: DiskOverflow, pages: Pages
) -> None:
    file, other = stored(overflow, pages, 1), stored(overflow, pages, 2)
    file.write_bytes(file.read_bytes()[:4096] + other.read_bytes()[4096:])
    assert is_lost(overflow, pages, Loss.CHECKSUM)


def test_a_version_from_the_future_is_not_guessed_at(overflow: DiskOverflow, pages: Pages) -> None:
    file = stored(overflow, pages)
    content = bytearray(file.read_bytes())
    content[8:12] = struct.pack("<I", 2)
    content[4080:4096] = xxhash.xxh3_128_digest(bytes(content[:4080]))
    file.write_bytes(content)
    assert is_lost(overflow, pages, Loss.VERSION)
    assert not file.exists()


def test_a_file_that_is_gone_is_lost(overflow: DiskOverflow, pages: Pages) -> None:
    stored(overflow, pages).unlink()
    assert is_lost(overflow, pages, Loss.GONE)


def test_bytes_behind_the_row_harm_nobody(overflow: DiskOverflow, pages: Pages) -> None:
    file = stored(overflow, pages)
    with file.open("ab") as opened:
        opened.write(b"more")
    assert restored(overflow, pages).stage is Stage.READY
    assert pages.content == row(1)


REPLACED: dict[str, tuple[Callable[[Path], object], Loss]] = {
    "a file": (lambda file: file.write_bytes(b"somebody's own" * 1000), Loss.FOREIGN),
    "a link": (lambda file: file.symlink_to("/etc/passwd"), Loss.FOREIGN),
    "a folder": (lambda file: file.mkdir(), Loss.UNREADABLE),
    "a pipe": (lambda file: os.mkfifo(file), Loss.UNREADABLE),
}


@pytest.mark.parametrize("kind", REPLACED)
def test_what_somebody_put_in_the_place_of_a_file_is_lost_to_us_and_stays_his(
    overflow: DiskOverflow, folder: Path, pages: Pages, kind: str
) -> None:
    put, loss = REPLACED[kind]
    file = stored(overflow, pages)
    # The file itself lives on elsewhere, so that nothing else gets its inode.
    file.rename(folder / "kept")
    put(file)
    before = file.lstat()
    assert is_lost(overflow, pages, loss)
    assert file.lstat() == before
    assert (folder / "kept").stat().st_size == SMALL_FILE_BYTES
    (file.rmdir if stat.S_ISDIR(before.st_mode) else file.unlink)()


def test_dropping_and_making_room_delete_no_file_that_somebody_put_there(
    overflow: DiskOverflow, folder: Path, pages: Pages
) -> None:
    kept = []
    for number in (1, 2, 3, 4):
        file = stored(overflow, pages, number)
        file.rename(folder / f"kept {number}")
        file.write_bytes(b"somebody's own")
        kept.append(file)
    assert overflow.drop(key(1))
    outcome = overflow.write(key(5), 5, pages.holding(5), 2.0)
    assert outcome.end in (WriteEnd.WRITTEN, WriteEnd.NOT_WORTH_IT)
    assert [file.read_bytes() for file in kept] == [b"somebody's own"] * 4
    for file in kept:
        file.unlink()


# -- folders that are not what they were


def test_without_its_folder_a_write_says_so_and_a_restore_is_lost(
    overflow: DiskOverflow, folder: Path, pages: Pages
) -> None:
    stored(overflow, pages)
    shutil.rmtree(folder)
    assert overflow.write(key(2), 2, pages.holding(2), 1.0).end is WriteEnd.FOLDER_GONE
    assert is_lost(overflow, pages, Loss.GONE)
    assert not folder.exists()


def test_without_its_own_folder_in_it_a_write_says_so(overflow: DiskOverflow, folder: Path, pages: Pages) -> None:
    file = stored(overflow, pages)
    shutil.rmtree(file.parent)
    assert overflow.write(key(2), 2, pages.holding(2), 1.0).end is WriteEnd.FOLDER_GONE
    assert [path.name for path in folder.iterdir()] == ["overflow.lock"]


def test_a_file_in_the_place_of_its_folder_is_a_folder_that_is_gone(
    overflow: DiskOverflow, folder: Path, pages: Pages
) -> None:
    shutil.rmtree(folder)
    folder.write_text("in the way")
    assert overflow.write(key(2), 2, pages.holding(2), 1.0).end is WriteEnd.FOLDER_GONE
    assert folder.read_text() == "in the way"


@pytest.fixture
def nobodys(tmp_path: Path) -> Path:
    """A folder's name where another user may make it."""
    if os.geteuid():
        pytest.skip("needs root, to become a user who is denied something")
    for above in (tmp_path, *tmp_path.parents):
        if not above.stat().st_mode & stat.S_IXOTH:
            above.chmod(above.stat().st_mode | stat.S_IXOTH)
    parent = tmp_path / "open"
    parent.mkdir()
    parent.chmod(0o777)
    return parent / "overflow"


def test_without_permission_a_write_says_so_and_a_restore_is_lost(nobodys: Path) -> None:
    with overflow_processes(1) as (process,):
        process.ask("become", NOBODY)
        process.ask("open", nobodys, 4 * SMALL_FILE_BYTES)
        assert process.ask("write", 1)[0] == "written"
        (own,) = nobodys.glob("savepoints-*")
        (file,) = own.iterdir()
        assert file.stat().st_uid == NOBODY
        file.chmod(0)
        own.chmod(0o500)
        end, text = process.ask("write", 2)
        assert (end, text) == ("not_permitted", "Permission denied")
        assert process.ask("restore", 1) == "unreadable"
        assert [path.name for path in own.iterdir()] == [file.name]  # it can't be deleted either
        own.chmod(0o700)
        assert process.ask("write", 2)[0] == "written"
        assert process.ask("close") is True
        assert [path.name for path in nobodys.iterdir()] == ["overflow.lock"]


def test_a_user_who_may_not_use_a_folder_is_told_at_once(folder: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root, to become a user who is denied something")
    folder.mkdir(mode=0o700)
    with overflow_processes(1) as (process,):
        process.ask("become", NOBODY)
        said = process.ask("open", folder, 4 * SMALL_FILE_BYTES)
        assert said["kind"] == "BadRequest"
        assert str(folder) in said["line"]
        assert "\n" not in said["line"]
    assert list(folder.iterdir()) == []


# -- file systems of their own


def on_a_mount(folder: Path, kind: str) -> list[str]:
    """What starts a program that alone sees a file system of that kind at the folder; or a skip with the reason."""
    folder.mkdir()
    mount = f'mount -t {kind} none "{folder}" && exec "$@"'
    before = [*in_namespace("--mount"), "sh", "-c", mount, "sh"]
    tried = subprocess.run([*before, "true"], capture_output=True, text=True, check=False, timeout=60)
    if tried.returncode:
        pytest.skip(f"no {kind} can be mounted here: {tried.stderr.strip()[:200]}")
    return before


def inside(process: OverflowProcess, folder: Path) -> Path:
    return Path(f"/proc/{process.pid}/root{folder}")


def test_on_a_full_disk_nothing_is_left_and_what_is_worth_less_goes(folder: Path) -> None:
    before = on_a_mount(folder, "tmpfs -o size=1m")
    with overflow_processes(1, before) as (process,):
        process.ask("open", folder, 2**30)
        there = inside(process, folder)
        for number in (1, 2):
            assert process.ask("write", number, 5)[0] == "written"
        process.ask("fill", folder, SMALL_FILE_BYTES - 4096)
        free = process.ask("free_bytes", folder)
        assert 0 < free < SMALL_FILE_BYTES
        names = [path.name for path in files(there)]
        end, text = process.ask("write", 3, 5)
        assert end == "disk_full"
        assert "short" in text
        assert process.ask("free_bytes", folder) == free
        assert [path.name for path in files(there)] == names
        assert process.ask("write", 3, 6)[0] == "written"
        assert process.ask("free_bytes", folder) == free
        assert process.ask("restore", 3) == "ready"
        assert process.ask("held_bytes") == 2 * SMALL_FILE_BYTES
        assert process.ask("is_direct") in (True, False)
        (there / "filler").unlink()
        assert process.ask("write", 4, 1)[0] == "written"


def test_a_file_system_that_refuses_to_go_past_the_page_cache_is_used_through_it(folder: Path) -> None:
    # ramfs can neither set bytes aside: the C library writes them.
    before = on_a_mount(folder, "ramfs")
    with overflow_processes(1, before) as (process,):
        process.ask("open", folder, 3 * SMALL_FILE_BYTES)
        for number in range(1, 6):
            assert process.ask("write", number, number)[0] == "written"
        assert process.ask("is_direct") is False
        assert [process.ask("restore", number) for number in (1, 5)] == ["not there", "ready"]
        there = inside(process, folder)
        assert [file.stat().st_size for file in files(there)] == [SMALL_FILE_BYTES] * 3
        (last,) = (file for file in files(there) if file.name.startswith(key(5).hex()))
        assert last.read_bytes()[4096:] == row(5)
        assert process.ask("close") is True
        assert [path.name for path in there.iterdir()] == ["overflow.lock"]


def test_the_bound_is_of_what_the_file_system_takes_and_not_of_lengths_alone(folder: Path) -> None:
    # Here a file of a few pages takes a huge page of 2 MiB.
    huge_bytes = 2 * MIB
    before = on_a_mount(folder, "tmpfs -o size=16m,huge=always")
    with overflow_processes(1, before) as (process,):
        process.ask("open", folder, 5 * MIB)
        assert process.ask("write", 1, 1)[0] == "written"
        there = inside(process, folder)
        if files(there)[0].stat().st_blocks * 512 != huge_bytes:
            pytest.skip("this kernel gives tmpfs no huge pages")
        for number in (2, 3, 4):
            assert process.ask("write", number, number)[0] == "written"
        assert process.ask("write", 5, 0)[0] == "not_worth_it"
        assert [file.stat().st_blocks * 512 for file in files(there)] == [huge_bytes] * 2
        assert process.ask("held_bytes") == 2 * huge_bytes
        assert [process.ask("restore", number) for number in (2, 3, 4)] == ["not there", "ready", "ready"]


def test_a_read_only_file_system_refuses_writes_and_still_gives_what_it_has(folder: Path) -> None:
    before = on_a_mount(folder, "tmpfs -o size=1m")
    with overflow_processes(1, before) as (process,):
        process.ask("open", folder, 2**30)
        assert process.ask("write", 1)[0] == "written"
        nsenter = ["nsenter", "-t", str(process.pid), "-m", "mount", "-o", "remount,ro", str(folder)]
        done = subprocess.run(nsenter, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            pytest.skip(f"it can't be made read-only here: {done.stderr.strip()[:200]}")
        assert process.ask("write", 2)[0] == "not_permitted"
        assert process.ask("restore", 1) == "ready"
        assert process.ask("close") is True
        assert process.end() == 0


# -- limits and errors in the midst


def test_a_file_larger_than_the_process_may_make_is_refused_before_a_byte(folder: Path) -> None:
    with overflow_processes(1) as (process,):
        process.ask("open", folder, 2**30)
        process.ask("limit_files", SMALL_FILE_BYTES - 1)
        assert process.ask("write", 1) == ["too_large", "File too large"]
        assert files(folder) == []
        process.ask("limit_files", SMALL_FILE_BYTES)
        assert process.ask("write", 1)[0] == "written"


@pytest.mark.parametrize("limit_bytes", [2**21, 2**21 + 100])
def test_a_write_that_is_cut_short_halfway_leaves_nothing(folder: Path, limit_bytes: int) -> None:
    with overflow_processes(1) as (process,):
        process.ask("open", folder, 2**30, "large")
        process.ask("limit_files_once_set_aside", limit_bytes)
        assert process.ask("write", 1) == ["too_large", "File too large"]
        assert files(folder) == []
        assert process.ask("held_bytes") == 0
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert process.ask("write", 1)[0] == "written"
        assert process.ask("restore", 1) == "ready"
        assert [file.stat().st_size for file in files(folder)] == [LARGE_FILE_BYTES]


def _written_under_a_limit(path: str, limit_bytes: int) -> tuple[int | None, int]:
    """Write a row where nothing was set aside; return the error's number, and how many threads are left."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))
    pages = Pages()
    try:
        with RowFile(os.open(path, os.O_RDWR | os.O_CREAT)) as file:
            write_row(file, pages.holding(1), pages.size_bytes, lambda: None)
    except OSError as error:
        return error.errno, len(our_threads())
    return None, len(our_threads())


@pytest.mark.parametrize("limit_bytes", [8192, 8192 + 100])
def test_the_system_itself_writes_less_than_it_was_given_and_that_ends_in_its_error(
    tmp_path: Path, limit_bytes: int
) -> None:
    path = tmp_path / "row"
    assert in_fresh_process(_written_under_a_limit, str(path), limit_bytes) == (27, 0)
    # Up to the very byte: so there was a write that came back short.
    assert path.stat().st_size == limit_bytes
    assert path.read_bytes()[4096:] == row(1)[: limit_bytes - 4096]


def test_an_input_output_error_comes_through_and_ends_the_thread_that_hashes(pages: Pages) -> None:
    # At offset 0 of a process's memory there is nothing: reading and writing there is EIO.
    descriptor = os.open("/proc/self/mem", os.O_RDWR)
    with RowFile(descriptor) as file:
        assert not file.is_direct
        with pytest.raises(OSError, match="Input/output error"):
            row_transfer.read_header(file)
        with pytest.raises(OSError, match="Input/output error"):
            row_transfer.read_row(file, pages.address, pages.size_bytes, lambda: None)
        with pytest.raises(OSError, match="Input/output error"):
            write_row(file, pages.address, pages.size_bytes, lambda: None)
    assert not our_threads()


def test_an_input_output_error_in_the_midst_of_a_restore_is_a_loss(folder: Path) -> None:
    # The memory of a process bound over the file: the same error, from a real file system.
    before = on_a_mount(folder, "tmpfs -o size=1m")
    with overflow_processes(1, before) as (process,):
        process.ask("open", folder, 2**30)
        assert process.ask("write", 1)[0] == "written"
        (file,) = files(inside(process, folder))
        name = folder / file.relative_to(inside(process, folder))
        bind = ["nsenter", "-t", str(process.pid), "-m", "mount", "--bind", "/proc/1/mem", str(name)]
        done = subprocess.run(bind, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            pytest.skip(f"nothing can be bound over a file here: {done.stderr.strip()[:200]}")
        assert process.ask("restore", 1) == "unreadable"
        assert process.ask("restore", 1) == "not there"
        assert process.ask("write", 1)[0] == "written"
        assert process.ask("restore", 1) == "ready"


def test_without_a_descriptor_left_a_write_fails_and_says_so(
    overflow: DiskOverflow, pages: Pages, folder: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    address = pages.holding(1)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208  # numbers, and no paths
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
        while True:
            try:
                taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        outcome = overflow.write(key(1), 1, address, 1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)
    assert outcome.end is WriteEnd.FAILED
    assert outcome.text == "Too many open files"
    assert files(folder) == []
    stored(overflow, pages)


def test_without_a_thread_left_a_write_does_all_itself_and_a_restore_has_to_wait(nobodys: Path) -> None:
    with overflow_processes(1) as (process,):
        process.ask("become", NOBODY)
        process.ask("open", nobodys, 4 * SMALL_FILE_BYTES)
        process.ask("limit_threads", 0)
        assert process.ask("write", 1)[0] == "written"
        assert process.ask("restore", 1) == "not there"
        process.ask("limit_threads", -1)
        assert process.ask("restore", 1) == "ready"
        assert process.ask("close") is True
