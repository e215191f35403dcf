"""What is known of the blocks of a config's allocators: from maps that were given, that are kept, or measured now."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pinprobe.ledger.allocator_map import map_allocator
from pinprobe.ledger.config.config import Config
from pinprobe.ledger.interrupted import raise_if_interrupted
from pinprobe.ledger.plan.map_cache import MapCache
from pinprobe.ledger.plan.map_file import MapFile
from pinprobe.ledger.plan.plan import Plan
from pinprobe.ledger.price import PriceList
from pinprobe.ledger.tenants.kinds import load_kind
from pinprobe.probes.allocators.registry import AUTO_ORDER
from pinprobe.probes.allocators.torch_settings import settings_by_key
from pinprobe.probes.errors import BadRequest, CouldNotMeasure
from pinprobe.probes.host_facts import HostFacts
from pinprobe.probes.reading import Unreadable
from pinprobe.probes.sweep import PointState, Sweep

AUTO = "auto"
_NOW, _KEPT = "measured now", "kept from an earlier run"
_OF_SMALL_REQUESTS = (_NOW, _KEPT)
# Sizes whose blocks differ by every rule that is known of, and take little: what a ledger tries at boot.
_TRIED_BYTES, _TRIED_COUNTS = 3_000_000, (1, 2, 3, 5)


@dataclass(frozen=True, slots=True)
class KnownMap:
    """One map that prices requests: of which allocator, for those that ask for it as `asked_as`, and where from."""

    asked_as: str
    allocator: str
    origin: str
    measured_at: str
    point_count: int


def allocators_of(config: Config) -> list[str]:
    """Return the allocators, each once, of whose blocks a map could tell: not of ordinary memory, which has none."""
    names: dict[str, None] = {}
    for tenant in config.tenants:
        if tenant.kind != "external" and load_kind(tenant.kind).only_allocator is None:
            names[tenant.allocator] = None
    return [name for name in names if name != "pageable"]


class KnownMaps:
    """The maps that were found so far, and the prices that follow from them.

    `remarks` are sentences for the user: maps that nobody asked for, that were measured under another torch, that can't
    be had. Where nothing is known of an allocator its requests are priced at what they ask.
    """

    def __init__(self, given: Sequence[MapFile], cache: MapCache, host: HostFacts) -> None:
        self.prices = PriceList()
        self.maps: list[KnownMap] = []
        self._given = given
        self._cache = cache
        self._host = host
        self._remarks: list[str] = [remark for file in given for remark in file.remarks]
        self._used: set[str] = set()

    @property
    def remarks(self) -> list[str]:
        """What a reader of the prices has to know, a line each."""
        idle = [file.source for file in self._given if file.source not in self._used]
        unused = [f"{source} maps no allocator that the config takes memory from; it is not used" for source in idle]
        return list(dict.fromkeys([*self._remarks, *self._cache.remarks, *unused]))

    def learn(self, names: Iterable[str], *, measure: bool, say: Callable[[str], object] = lambda step: None) -> None:
        """Find a map for each allocator; with `measure` one is measured in a fresh process where none was given."""
        for name in names:
            if any(known.asked_as == name for known in self.maps) or self._from_given(name):
                continue
            if measure:
                say(f"trying what {name} takes")
                self._measure(name)
            else:
                self._from_cache(name)
        if any(known.origin in _OF_SMALL_REQUESTS for known in self.maps):
            self._remark_settings()

    def _from_given(self, name: str) -> bool:
        sweeps = [(file, sweep) for file in self._given for sweep in file.sweeps if sweep.allocator == name]
        if not sweeps and name == AUTO:
            sweeps = self._best_for_auto()
        for file, sweep in sweeps:
            self._used.add(file.source)
            self._remark_other_torch(file)
            self._add(name, sweep, file.source, file.measured_at)
        return bool(sweeps)

    def _best_for_auto(self) -> list[tuple[MapFile, Sweep]]:
        """Take for `auto` what it would choose first of all that was mapped, and say so: nothing is tried for it."""
        for candidate in AUTO_ORDER:
            found = [(file, sweep) for file in self._given for sweep in file.sweeps if sweep.allocator == candidate]
            if found:
                self._remarks.append(f"auto is priced as {candidate}, of which a map was given")
                return found
        return []

    def _remark_other_torch(self, file: MapFile) -> None:
        here = self._host
        mapped, own = (_named(fact) for fact in (file.torch, here.torch))
        if mapped != own:
            self._remarks.append(f"{file.source} was measured with torch {mapped}; here is torch {own}")
        elif dict(file.torch_settings) != dict(here.torch_settings):
            self._remarks.append(f"{file.source} was measured under other settings of torch than those set here")

    def _from_cache(self, name: str) -> None:
        kept = self._cache.find(name)
        for sweep in kept.sweeps if kept is not None else ():
            assert kept is not None
            self._add(name, sweep, _KEPT, kept.measured_at)

    def _measure(self, name: str) -> None:
        try:
            sweep = map_allocator(name, _TRIED_BYTES, _TRIED_COUNTS)
        except (CouldNotMeasure, BadRequest) as error:
            raise_if_interrupted(str(error))
            self._remarks.append(f"{name} is priced at what is asked, since it could not be tried: {error}")
            return
        self._cache.keep(name, sweep)
        self._add(name, sweep, _NOW, "")

    def _remark_settings(self) -> None:
        settings = {key for text in self._host.torch_settings.values() for key in settings_by_key(text)}
        pinned = sorted(key for key in settings if key.startswith("pinned_"))
        if pinned:
            self._remarks.append(
                f"{', '.join(pinned)} of torch's settings may have larger requests served otherwise than the small ones"
                " that were tried; `pinprobe sweep --receipt FILE` near their sizes, and --map FILE, tells"
            )

    def _add(self, name: str, sweep: Sweep, origin: str, measured_at: str) -> None:
        self.prices.add(sweep, name)
        measured = [point for point in sweep.points if point.state is PointState.MEASURED]
        self.maps.append(KnownMap(name, sweep.allocator, origin, measured_at, len(measured)))


def _named(fact: str | Unreadable) -> str:
    return fact if isinstance(fact, str) else "none"


def unmapped_sentences(plans: Sequence[Plan], known: KnownMaps, config: str) -> list[str]:
    """Say of which allocators no map answers, and what makes one; `config` is what the user calls the config."""
    asked: dict[str, list[int]] = {}
    for plan in plans:
        for row in plan.rows:
            if row.has_no_map:
                asked.setdefault(row.allocator, []).append(row.asked_bytes)
    sentences = []
    for name, sizes in asked.items():
        if any(each.asked_as == name for each in known.maps):
            how = f"pinprobe sweep --allocator {name} --slot-bytes {min(sizes)} --slots 1..4 --receipt FILE"
            sentences.append(
                f"the map of {name} leaves it open what some tenants take, which are priced at what they ask; `{how}`,"
                " and --map FILE, closes that"
            )
        else:
            own = {row.allocator for row in plans[0].rows}
            other = "" if name in own else f" --what-if allocator={shlex.quote(name)}"
            how = f"pinprobe plan {shlex.quote(config)}{other} --measure"
            sentences.append(
                f"no map of {name} is known here: its tenants are priced at what they ask, and it may take more;"
                f" `{how}` makes one"
            )
    return sentences
