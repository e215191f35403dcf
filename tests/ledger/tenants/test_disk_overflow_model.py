"""The overflow against a simple model of it, whatever is asked in whatever order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinprobe.ledger.tenants.disk_overflow import DiskOverflow
from pinprobe.ledger.tenants.overflow_outcome import WriteEnd
from pinprobe.ledger.tenants.restore import Stage
from tests.ledger.tenants.open_files import open_files
from tests.ledger.tenants.overflow_bench import (
    SMALL,
    SMALL_FILE_BYTES,
    Pages,
    ended,
    files,
    is_read_back,
    key,
    our_threads,
    row,
    wait_for,
)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No descriptor and no thread of ours outlives a test."""
    files = open_files()
    yield
    wait_for(lambda: not our_threads())
    assert open_files() == files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "overflow"


@pytest.fixture
def pages() -> Iterator[Pages]:
    pages = Pages()
    yield pages
    pages.unmap()


NUMBERS = st.integers(0, 5)
VALUES = st.integers(0, 3).map(float)
STEPS = st.one_of(
    st.tuples(st.just("write"), NUMBERS, VALUES),
    st.tuples(st.just("revalue"), NUMBERS, VALUES),
    st.tuples(st.just("drop"), NUMBERS, st.just(0.0)),
    st.tuples(st.just("restore"), NUMBERS, st.just(0.0)),
    st.tuples(st.just("cut"), NUMBERS, st.just(0.0)),
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, max_size=25))
def test_whatever_is_asked_in_whatever_order_the_folder_holds_what_a_simple_model_says(
    folder: Path, pages: Pages, steps: list[tuple[str, int, float]]
) -> None:
    overflow = DiskOverflow(folder, SMALL, 3 * SMALL_FILE_BYTES)
    model: dict[int, float] = {}
    cut: set[int] = set()
    for kind, number, value in steps:
        if kind == "write":
            end = overflow.write(key(number), number, pages.holding(number), value).end
            least = min(model, key=lambda each: model[each], default=None)
            if number in model:
                assert end is WriteEnd.ALREADY_THERE
                model[number] = value
            elif len(model) < 3 or (least is not None and model[least] < value):
                assert end is WriteEnd.WRITTEN
                if len(model) == 3 and least is not None:
                    # Of several that are worth as little, any may go.
                    gone = [each for each in model if key(each) not in overflow]
                    assert [model[each] for each in gone] == [model[least]]
                    del model[gone[0]]
                    cut.discard(gone[0])
                model[number] = value
            else:
                assert end is WriteEnd.NOT_WORTH_IT
        elif kind == "revalue":
            assert overflow.revalue(key(number), value) == (number in model)
            model.update({number: value} if number in model else {})
        elif kind == "drop":
            assert overflow.drop(key(number)) == (number in model)
            model.pop(number, None)
            cut.discard(number)
        elif kind == "cut":
            for file in files(folder):
                if file.name.startswith(key(number).hex()):
                    with file.open("r+b") as opened:
                        opened.truncate(SMALL_FILE_BYTES)  # so that its blocks are still what they were
                        opened.seek(5000)
                        opened.write(bytes([row(number)[5000 - 4096] ^ 1]))
                    cut.add(number)
        elif number in cut:
            assert ended(overflow.begin_restore(key(number), pages.address)).collect().stage is Stage.LOST
            cut.discard(number)
            del model[number]
        else:
            assert is_read_back(overflow, pages, number) == (number in model)
        assert sorted(file.name[:32] for file in files(folder)) == sorted(key(each).hex() for each in model)
        assert sum(file.stat().st_blocks * 512 for file in files(folder)) == overflow.held_bytes
    assert overflow.close()
    assert files(folder) == []
