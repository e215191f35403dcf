"""Opens the tenants of a config through a ledger, and gives all of them back together."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from types import TracebackType

from pinprobe.ledger.allocator_map import map_allocator
from pinprobe.ledger.config.config import Config
from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.kinds import load_kind
from pinprobe.ledger.tenants.tenant import Tenant, TenantKind, TenantSpec
from pinprobe.probes.allocators.registry import prepare_allocator
from pinprobe.probes.allocators.uncached import Uncached
from pinprobe.probes.errors import AllocationFailed, BadRequest, CouldNotMeasure, PinprobeError, in_one_line

_log = logging.getLogger("pinprobe")
# Sizes whose blocks differ by every rule that is known of, and take little.
_TRIED_BYTES, _TRIED_COUNTS = 3_000_000, (1, 2, 3, 5)


class Boot:
    """The tenants of a config, ready to be opened. A context manager, at whose end they are closed.

    Whatever their allocators have to load (a library, a driver's context) is loaded here: make the ledger after this,
    and it does not show as growth of the process that no row explains.
    """

    def __init__(self, config: Config, scale: Fraction = Fraction(1)) -> None:
        kinds = {name: load_kind(name) for name in {tenant.kind for tenant in config.tenants}}
        self._openings: list[tuple[TenantKind, TenantSpec, int | None]] = []
        for tenant in config.tenants:
            kind = kinds[tenant.kind]
            with _told(tenant, "made ready"):
                spec = tenant if scale == 1 else kind.scaled(tenant, scale)
                kind.prepare(spec)
            ranks: list[int | None] = list(range(config.ranks)) if tenant.per == "rank" and config.ranks > 1 else [None]
            self._openings += [(kind, spec, rank) for rank in ranks]
        self._open = ExitStack()

    @property
    def asked_bytes(self) -> int:
        """What all of it asks for, every rank's copy counted."""
        return sum(kind.asked_bytes(spec) for kind, spec, _ in self._openings)

    def learn_prices(self, ledger: HostPinnedLedger) -> None:
        """Have the ledger know what blocks the tenants' allocators take, from some small requests in another process.

        Without that a tenant would be admitted at what it asks, and its allocator might take twice as much. Where an
        allocator can't be measured so, that is logged, and its tenants are priced at what they ask.
        """
        for name in self._allocator_names():
            try:
                ledger.prices.add(map_allocator(name, _TRIED_BYTES, _TRIED_COUNTS), name)
            except (CouldNotMeasure, BadRequest) as error:
                _log.warning("%s is priced at what is asked, since it could not be tried: %s", name, error)

    def _allocator_names(self) -> set[str]:
        names = set()
        for kind, spec, _ in self._openings:
            if kind.only_allocator is None and kind.kind != "external":
                allocator = prepare_allocator(spec.allocator, kind.asked_bytes(spec)).allocator
                if not isinstance(allocator, Uncached):  # which keeps nothing and takes what is asked, to the page
                    names.add(allocator.name)
        return names

    def open(self, ledger: HostPinnedLedger) -> None:
        """Open every tenant in the config's order, one copy for each rank. Where one fails, none stays open."""
        try:
            for kind, spec, rank in self._openings:
                with _told(spec, "opened"):
                    tenant = kind.open(spec, ledger, rank)
                self._open.callback(_close, tenant, spec)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close them, the last one first. Where one can't be closed the others are, and then that is raised."""
        self._open.close()

    def __enter__(self) -> Boot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _close(tenant: Tenant, spec: TenantSpec) -> None:
    with _told(spec, "closed"):
        tenant.close()


@contextmanager
def _told(spec: TenantSpec, what: str) -> Iterator[None]:
    """Tell what foreign code raises in one line, with the tenant that it came from."""
    try:
        yield
    except PinprobeError:
        raise
    except Exception as error:
        raise AllocationFailed(f"{spec.name} can't be {what}: {in_one_line(error)}") from error
