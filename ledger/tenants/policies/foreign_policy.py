"""A policy of others, held to what a policy owes its keeper: whatever it does, it is told by its own name."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator

from pinprobe.ledger.tenants.policies.policy import Decision, Key, Policy, Savepoint
from pinprobe.probes.errors import BadRequest, PinprobeError, in_one_line


class ForeignPolicy:
    """Passes every call on. Raises `BadRequest`, naming the policy and the call, where that fails or can't be used.

    After an error of its own a policy may count other entries as resident than its keeper has, so it is not to be
    asked again.
    """

    def __init__(self, policy: Policy, called: str) -> None:
        """`called` is how messages name it: its name, and where it comes from."""
        self._policy = policy
        self._called = called
        self.name = policy.name

    @property
    def slots(self) -> int:
        """How many slots its keeper gave it."""
        with self._told("slots"):
            return self._policy.slots

    @slots.setter
    def slots(self, slots: int) -> None:
        with self._told("slots"):
            self._policy.slots = slots

    @property
    def resident_count(self) -> int:
        """How many entries it counts as resident."""
        with self._told("resident_count"):
            return self._policy.resident_count

    def __contains__(self, key: object) -> bool:
        with self._told("__contains__"):
            return key in self._policy

    def read(self, key: Key, now_seconds: float) -> None:
        """Pass it on."""
        with self._told("read"):
            self._policy.read(key, now_seconds)

    def offer(self, savepoint: Savepoint, now_seconds: float, held: Container[Key] = ()) -> Decision:
        """Pass it on. Raises `BadRequest` too where the answer is no `Decision`, or keeps more than there are slots."""
        with self._told("offer"):
            most = max(self._policy.slots, self._policy.resident_count)
            decision: object = self._policy.offer(savepoint, now_seconds, held)
            count = self._policy.resident_count
        if not isinstance(decision, Decision):
            raise BadRequest(
                f"the retention policy {self._called}: offer returned {type(decision).__name__}, and has to return a"
                " Decision"
            )
        if count > most:
            raise BadRequest(
                f"the retention policy {self._called}: offer left {count:,} entries resident where {most:,} may be;"
                " it has to let one go, or refuse the newcomer"
            )
        return decision

    def evict(self, now_seconds: float, held: Container[Key] = ()) -> Key | None:
        """Pass it on."""
        with self._told("evict"):
            return self._policy.evict(now_seconds, held)

    def next_to_go(self, now_seconds: float, held: Container[Key] = ()) -> Key | None:
        """Pass it on."""
        with self._told("next_to_go"):
            return self._policy.next_to_go(now_seconds, held)

    def remove(self, key: Key) -> None:
        """Pass it on."""
        with self._told("remove"):
            self._policy.remove(key)

    @contextlib.contextmanager
    def _told(self, call: str) -> Iterator[None]:
        try:
            yield
        except PinprobeError:
            raise
        except (Exception, SystemExit) as error:
            # Foreign code: whatever it raises, it is not a fault of ours.
            raise BadRequest(
                f"the retention policy {self._called}: {call} failed: {in_one_line(error)}; mend it, or take another"
            ) from error
