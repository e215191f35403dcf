"""Many threads at once, none of which may hang."""

from __future__ import annotations

import threading
from collections.abc import Callable

#: No thread of a test waits longer for another.
PATIENCE_SECONDS = 20.0


def in_threads(count: int, act: Callable[[int], object], patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Run `act` in so many threads at once and pass on the first error of any."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait(PATIENCE_SECONDS)
            act(number)
        except BaseException as error:  # noqa: BLE001  # it is raised again where the test can see it
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience_seconds)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
