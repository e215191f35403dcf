"""pinprobe: what page-locked host memory really costs.

The three floors, imports running downwards only:

* `pinprobe.probes` measures,
* `pinprobe.ledger` books what was measured,
* `pinprobe.cli` shows it.

`from pinprobe import HostPinnedLedger` is where an engine begins. Importing the package itself costs nothing: a public
name is loaded when it is asked for, and none of them loads torch or any other library.
"""

TYPE_CHECKING = False  # type checkers take it for true; importing typing for it would cost 8 ms
if TYPE_CHECKING:
    from pinprobe.ledger.book.host_book import HostBook
    from pinprobe.ledger.ledger import HostPinnedLedger
    from pinprobe.probes.errors import PinprobeError, Refused

__version__ = "0.1.0"

__all__ = ["HostBook", "HostPinnedLedger", "PinprobeError", "Refused"]

_HOMES = {
    "HostBook": "pinprobe.ledger.book.host_book",
    "HostPinnedLedger": "pinprobe.ledger.ledger",
    "PinprobeError": "pinprobe.probes.errors",
    "Refused": "pinprobe.probes.errors",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'pinprobe' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
