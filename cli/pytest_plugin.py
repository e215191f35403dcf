"""The pytest plugin: a ledger for a test, a limit for it, and what it shows when a test fails or a run ends.

Loaded by every pytest of an environment that pinprobe is installed in, so nothing but pytest and the standard library
is imported before a test asks for the ledger, and without `--pinprobe` a run prints what it printed before.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pinprobe.cli.pinned_tests import PinnedTest
    from pinprobe.ledger.ledger import HostPinnedLedger

_FIXTURE = "host_pinned_ledger"
_MARKER = "pinned_limit"
_LEDGER: pytest.StashKey[HostPinnedLedger] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--pinprobe`."""
    parser.getgroup("pinprobe").addoption(
        "--pinprobe",
        action="store_true",
        default=False,
        help="sum up what each test that used host_pinned_ledger asked for and what that really took",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and with `--pinprobe` what sums up."""
    config.addinivalue_line(
        "markers", f'{_MARKER}(size): at most this may be reserved in {_FIXTURE}: bytes, or a size like "4 GiB"'
    )
    if _sums_up(config):
        config.pluginmanager.register(_Summary(), "pinprobe-summary")


@pytest.hookimpl(trylast=True)  # what -k and -m leave out is gone by then
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse limits that are none before any test runs. Raises `pytest.UsageError` with a line for each."""
    problems = dict.fromkeys(problem for item in items for problem in _marker_problems(item))
    if problems:
        raise pytest.UsageError(*problems)


@pytest.fixture
def host_pinned_ledger(request: pytest.FixtureRequest) -> Iterator[HostPinnedLedger]:
    """A HostPinnedLedger for this test: what is reserved through it is booked at what it really takes.

    The marker `pinned_limit` bounds it. At the end of the test it is verified, and the test fails where a row is booked
    below what is resident or where that can't be read; what is still reserved then is released.
    """
    from pinprobe.cli.pinned_tests import PinnedTest, unproven
    from pinprobe.ledger.ledger import HostPinnedLedger
    from pinprobe.ledger.printout import printout
    from pinprobe.ledger.watched_ledger import WatchedLedger

    item = request.node
    marker = item.get_closest_marker(_MARKER)
    limit_bytes = None if marker is None else _limit_bytes(marker)
    kind = WatchedLedger if _sums_up(request.config) else HostPinnedLedger
    with kind(limit_bytes=limit_bytes) as ledger:
        item.stash[_LEDGER] = ledger
        yield ledger
        account = ledger.verify()
        if isinstance(ledger, WatchedLedger):
            item.user_properties += PinnedTest.of(item.nodeid, ledger.fullest or account, account).properties()
        lines = unproven(account)
        if lines:
            rows = "1 row" if len(lines) == 1 else f"{len(lines)} rows"
            head = f"{_FIXTURE}: {rows} not shown to be booked at what is resident or more"
            pytest.fail("\n".join([head, *(f"  {line}" for line in lines), "", printout(account)]), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the rows of the ledger with the failure of a test that reserved something."""
    report = yield
    ledger = item.stash.get(_LEDGER, None)
    if ledger is not None and report.failed and call.when != "teardown":
        from pinprobe.probes.errors import in_one_line

        try:
            if ledger.peak_bytes:
                report.sections.append(("pinprobe ledger", ledger.printout()))
        except Exception as error:  # noqa: BLE001  # what the test patched is still patched, and a raise ends the run
            report.sections.append(("pinprobe ledger", f"can't be shown: {in_one_line(error)}"))
    return report


class _Summary:
    """Gathers what tests report, also those that ran in other processes, and prints it when the run ends."""

    def __init__(self) -> None:
        self._tests: dict[str, PinnedTest] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the figures of a test that used the ledger: its last report has them."""
        if report.when == "teardown":
            from pinprobe.cli.pinned_tests import PinnedTest

            test = PinnedTest.from_properties(report.nodeid, dict(report.user_properties))
            if test is not None:
                self._tests[report.nodeid] = test

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print a line for each test that used the ledger."""
        from pinprobe.cli.pinned_tests import summary_lines

        terminalreporter.write_sep("=", "pinprobe")
        for line in summary_lines(list(self._tests.values())):
            terminalreporter.write_line(line)


def _sums_up(config: pytest.Config) -> bool:
    # Where the plugin is named by a test module itself, the command line has been read without it.
    return bool(config.getoption("pinprobe", default=False))


def _marker_problems(item: pytest.Item) -> Iterator[str]:
    for node, marker in item.iter_markers_with_node(_MARKER):
        from pinprobe.probes.errors import BadRequest

        place = node.nodeid.partition("[")[0] or item.nodeid  # once, and not for each set of parameters
        try:
            _limit_bytes(marker)
        except BadRequest as error:
            yield f"{place}: {error}"
        # One that stands on a class or a module is for those tests in it that do use the ledger.
        if node is item and _FIXTURE not in getattr(item, "fixturenames", ()):
            yield f"{place}: {_MARKER} bounds nothing, since the test does not use {_FIXTURE}: name it as an argument"


def _limit_bytes(marker: pytest.Mark) -> int:
    from pinprobe.probes.errors import BadRequest
    from pinprobe.probes.units import parse_size

    example = f'write @pytest.mark.{_MARKER}("4 GiB")'
    if marker.kwargs or len(marker.args) != 1:
        raise BadRequest(f"{_MARKER} takes one size and nothing else: {example}")
    size = marker.args[0]
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise BadRequest(f"{_MARKER}: {size!r} is neither bytes nor text: {example}")
    try:
        return parse_size(str(size))
    except BadRequest as error:
        raise BadRequest(f"{_MARKER}: {error}") from None
