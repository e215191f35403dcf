"""A reservation and its line go together, on every way out; the ledger behind them is a fake that takes notes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pinprobe.ledger.reservation import Adoption, Reservation


@dataclass
class FakeBookkeeper:
    """Notes what it is told; a number that was let go of is booked at nothing."""

    booked: dict[int, int] = field(default_factory=dict)
    let_go_of: list[int] = field(default_factory=list)
    later: list[tuple[int, Callable[[], object]]] = field(default_factory=list)

    def booked_for(self, number: int) -> int:
        return self.booked.get(number, 0)

    def let_go(self, number: int) -> None:
        self.let_go_of.append(number)
        self.booked.pop(number, None)

    def let_go_later(self, number: int, give_back: Callable[[], object]) -> None:
        self.later.append((number, give_back))

    def tidy(self) -> list[int]:
        """What a ledger does at its next step."""
        numbers = []
        while self.later:
            number, give_back = self.later.pop(0)
            give_back()
            self.booked.pop(number, None)
            numbers.append(number)
        return numbers


class Memory:
    """Something that can be referred to weakly."""


@pytest.fixture
def ledger() -> FakeBookkeeper:
    return FakeBookkeeper({7: 4096})


def reserved(ledger: FakeBookkeeper, value: object, free: object = None) -> Reservation[object]:
    return Reservation(ledger, 7, "cache.ring", 4000, value, free)  # type: ignore[arg-type]


# Giving back.


def test_a_reservation_carries_what_the_callable_returned_and_what_is_booked_for_it(ledger: FakeBookkeeper) -> None:
    value = Memory()
    reservation = reserved(ledger, value)
    assert reservation.value is value
    assert (reservation.owner, reservation.asked_bytes, reservation.booked_bytes) == ("cache.ring", 4000, 4096)


def test_what_is_booked_is_asked_of_the_ledger_each_time(ledger: FakeBookkeeper) -> None:
    reservation = reserved(ledger, Memory())
    ledger.booked[7] = 8192
    assert reservation.booked_bytes == 8192


def test_a_release_calls_free_lets_go_of_the_value_and_only_then_strikes_the_line(ledger: FakeBookkeeper) -> None:
    value, steps = Memory(), list[str]()
    gone = weakref.ref(value)

    def free(given: object) -> None:
        assert given is gone()
        steps.append(f"freed, struck {ledger.let_go_of}")

    weakref.finalize(value, lambda: steps.append(f"gone, struck {ledger.let_go_of}"))
    reservation = reserved(ledger, value, free)
    del value
    reservation.release()
    assert steps == ["freed, struck []", "gone, struck []"]
    assert ledger.let_go_of == [7]
    assert reservation.booked_bytes == 0


def test_a_second_release_frees_nothing_more(ledger: FakeBookkeeper) -> None:
    freed: list[object] = []
    reservation = reserved(ledger, "value", freed.append)
    reservation.release()
    reservation.release()
    assert freed == ["value"]


def test_after_the_release_there_is_no_value(ledger: FakeBookkeeper) -> None:
    reservation = reserved(ledger, "value")
    reservation.release()
    with pytest.raises(ValueError, match=r"^cache\.ring was released$"):
        _ = reservation.value


def test_a_value_that_is_none_is_a_value(ledger: FakeBookkeeper) -> None:
    freed: list[object] = []
    reservation = reserved(ledger, None, freed.append)
    assert reservation.value is None
    reservation.release()
    assert freed == [None]


def test_a_free_that_raises_says_so_and_the_line_is_struck_all_the_same(ledger: FakeBookkeeper) -> None:
    def free(given: object) -> None:
        raise OSError("no such block")

    reservation = reserved(ledger, "value", free)
    with pytest.raises(OSError, match="no such block"):
        reservation.release()
    assert ledger.let_go_of == [7]
    reservation.release()  # it does not try again what failed


def test_a_free_that_releases_again_is_called_once(ledger: FakeBookkeeper) -> None:
    calls = []

    def free(given: object) -> None:
        calls.append(given)
        reservation.release()

    reservation = reserved(ledger, "value", free)
    reservation.release()
    assert calls == ["value"]


def test_threads_that_release_at_once_free_once_and_none_of_them_fails(ledger: FakeBookkeeper) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    freed: list[int] = []
    failed: list[BaseException] = []
    try:
        for round_number in range(100):
            reservation = Reservation(ledger, 7, "cache.ring", 1, round_number, freed.append)
            gate = threading.Barrier(4)

            def release(reservation: Reservation[int] = reservation, gate: threading.Barrier = gate) -> None:
                gate.wait()
                try:
                    reservation.release()
                except BaseException as error:  # noqa: BLE001
                    failed.append(error)

            threads = [threading.Thread(target=release) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert failed == []
    assert freed == list(range(100))


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_the_end_of_a_with_gives_back_whatever_happened_in_it(
    ledger: FakeBookkeeper, error: type[BaseException] | None
) -> None:
    freed: list[object] = []
    reservation = reserved(ledger, "value", freed.append)

    def use() -> None:
        with reservation as entered:
            assert entered is reservation
            assert entered.value == "value"
            if error is not None:
                raise error

    if error is None:
        use()
    else:
        with pytest.raises(error):
            use()
    assert (freed, ledger.let_go_of) == (["value"], [7])


# Forgetting.


def test_a_forgotten_reservation_is_given_back_and_struck_at_the_ledgers_next_step(ledger: FakeBookkeeper) -> None:
    value = Memory()
    gone = weakref.ref(value)
    reservation = reserved(ledger, value)
    del value
    assert ledger.later == []
    del reservation
    gc.collect()
    assert ledger.let_go_of == []  # the collector may run while the ledger holds its lock
    assert ledger.tidy() == [7]
    assert gone() is None


def test_a_forgotten_reservation_is_given_back_by_its_free(ledger: FakeBookkeeper) -> None:
    # Not every memory goes with its object: what an allocator handed out as an address is kept until it is freed.
    freed: list[object] = []
    reservation = reserved(ledger, "value", freed.append)
    del reservation
    gc.collect()
    assert ledger.tidy() == [7]
    assert freed == ["value"]


def test_a_reservation_forgotten_in_a_circle_is_found_by_the_collector(ledger: FakeBookkeeper) -> None:
    class Circle:
        of: list[object]

    reservation = reserved(ledger, Memory())
    circle = Circle()
    circle.of = [reservation, circle]
    del reservation, circle
    assert ledger.later == []
    gc.collect()
    assert ledger.tidy() == [7]


def test_forgetting_what_was_released_frees_nothing_more(ledger: FakeBookkeeper) -> None:
    freed: list[object] = []
    reservation = reserved(ledger, "value", freed.append)
    reservation.release()
    del reservation
    gc.collect()
    assert ledger.tidy() == []
    assert freed == ["value"]
    assert ledger.let_go_of == [7]


# Adopting.


def test_an_adoption_refers_to_its_memory_by_no_means_and_goes_with_it(ledger: FakeBookkeeper) -> None:
    memory = Memory()
    gone = weakref.ref(memory)
    adoption = Adoption.of(ledger, 7, "weights", 4096, memory)
    assert (adoption.owner, adoption.asked_bytes, adoption.booked_bytes) == ("weights", 4096, 4096)
    del memory
    assert gone() is None  # at once: there is not even a circle
    assert ledger.tidy() == [7]
    assert adoption.booked_bytes == 0


def test_an_adoption_that_is_forgotten_keeps_its_line_as_long_as_the_memory_is_there(ledger: FakeBookkeeper) -> None:
    memory = Memory()
    adoption = Adoption.of(ledger, 7, "weights", 4096, memory)
    del adoption
    gc.collect()
    assert (ledger.later, ledger.let_go_of) == ([], [])
    del memory
    assert ledger.tidy() == [7]


@pytest.mark.parametrize("held", [bytearray(10), [1], {}, (1,), 4096], ids=lambda held: type(held).__name__)
def test_memory_that_can_t_be_watched_keeps_its_line_until_that_is_released(
    ledger: FakeBookkeeper, held: object
) -> None:
    adoption = Adoption.of(ledger, 7, "weights", 4096, held)
    del held
    gc.collect()
    assert ledger.later == []
    with adoption:
        assert adoption.booked_bytes == 4096
    assert ledger.let_go_of == [7]
    adoption.release()


AT_EXIT = """
from pinprobe.ledger.reservation import Adoption, Reservation

class Ledger:
    def booked_for(self, number): return 0
    def let_go(self, number): print("let go", flush=True)
    def let_go_later(self, number, give_back): print("let go later", flush=True)

class Memory: pass

memory, ledger = Memory(), Ledger()
kept = [Adoption.of(ledger, 1, "a", 1, memory), Reservation(ledger, 2, "b", 1, memory, None)]
"""


def test_nothing_is_struck_when_the_interpreter_ends() -> None:
    # A finalizer that runs then would find the half of its world gone.
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT], env={"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True,
        check=True, timeout=60,
    )  # fmt: skip
    assert "let go" not in done.stdout
    assert done.stderr == ""
