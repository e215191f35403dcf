"""What the pytest plugin prints at the end of a run when it is asked to, and that it is inert when it is not."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run

pytest_plugins = ["pytester"]

MIB = 2**20
PLUGIN = "pinprobe.cli.pytest_plugin"


# -- the summary

_THREE_TESTS = """
from taking import MIB, reserve

def test_exact(host_pinned_ledger):
    with reserve(host_pinned_ledger, asked=2 * MIB, taken=2 * MIB):
        pass
    with reserve(host_pinned_ledger, asked=MIB, taken=MIB):
        pass

def test_a_third_more(host_pinned_ledger):
    with reserve(host_pinned_ledger):
        pass

def test_nothing(host_pinned_ledger):
    pass

def test_without():
    pass
"""


def summary(result: pytest.RunResult) -> list[str]:
    lines = [str(line) for line in result.stdout.lines]
    (start,) = [number for number, line in enumerate(lines) if re.fullmatch("=+ pinprobe =+", line)]
    end = next(number for number, line in enumerate(lines) if number > start and line.startswith("===="))
    return lines[start + 1 : end]


def test_the_summary_has_a_line_for_each_test_the_worst_ratio_first_and_the_sums(
    pytester: pytest.Pytester, run_with_plugin: Run
) -> None:
    pytester.makepyfile(test_engine=_THREE_TESTS)
    result = run_with_plugin("--pinprobe")
    result.assert_outcomes(passed=4)
    lines = summary(result)
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines[:5]] == [
        ["MiB", "asked", "booked", "resident", "ratio", "peak", "held"],
        ["test_engine.py::test_a_third_more", "3.000", "4.000", "4.000", "1.333", "4.000", "yes"],
        ["test_engine.py::test_exact", "2.000", "2.000", "2.000", "1.000", "2.000", "yes"],
        ["test_engine.py::test_nothing", "0.000", "0.000", "0.000", "-", "0.000", "yes"],
        ["3", "tests", "5.000", "6.000", "6.000", "1.200", "4.000", "yes"],
    ]


def test_a_test_whose_ledger_did_not_hold_is_marked_in_the_summary(
    pytester: pytest.Pytester, run_with_plugin: Run
) -> None:
    pytester.makepyfile(
        """
        def test_it(host_pinned_ledger):
            ballast = [bytearray(b"x") * (8 << 20)]

            def opaque():
                ballast.clear()  # the process grows by less than this meanwhile, so it shrinks
                return object()

            host_pinned_ledger.kept_alive = host_pinned_ledger.reserve("kv.opaque", 4096, opaque)
        """
    )
    result = run_with_plugin("--pinprobe")
    result.assert_outcomes(passed=1, errors=1)
    assert [line.split()[-1] for line in summary(result)[:3]] == ["held", "?", "?"]


def test_a_run_without_the_fixture_says_so_when_asked(pytester: pytest.Pytester, run_with_plugin: Run) -> None:
    pytester.makepyfile("def test_it(): pass")
    assert summary(run_with_plugin("--pinprobe")) == ["no test used host_pinned_ledger, so there is nothing to sum up"]


def test_without_a_terminal_the_option_does_no_harm(pytester: pytest.Pytester, run_with_plugin: Run) -> None:
    pytester.makepyfile(_THREE_TESTS)
    result = run_with_plugin("--pinprobe", "-p", "no:terminal", "--junit-xml", "report.xml")
    assert (result.ret, result.stdout.str(), result.stderr.str()) == (0, "", "")


def test_the_figures_stand_in_the_xml_report_too(pytester: pytest.Pytester, run_with_plugin: Run) -> None:
    pytester.makepyfile(_THREE_TESTS)
    run_with_plugin("--pinprobe", "--junit-xml", "report.xml")
    report = xml.etree.ElementTree.parse(pytester.path / "report.xml")
    found = {
        case.get("name"): {item.get("name"): item.get("value") for item in case.iter("property")}
        for case in report.iter("testcase")
    }
    assert found["test_a_third_more"] == {
        "pinprobe_asked_bytes": str(3 * MIB),
        "pinprobe_booked_bytes": str(4 * MIB),
        "pinprobe_resident_bytes": str(4 * MIB),
        "pinprobe_peak_bytes": str(4 * MIB),
        "pinprobe_held": "True",
    }
    assert found["test_without"] == {}


def test_figures_from_a_worker_process_are_summed_up(pytester: pytest.Pytester, run_with_plugin: Run) -> None:
    # What xdist does with each report of a worker: plain values, written and read back.
    pytester.makeconftest(
        """
        import json
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_makereport(item):
            report = yield
            hook = item.config.hook
            data = json.loads(json.dumps(hook.pytest_report_to_serializable(config=item.config, report=report)))
            return hook.pytest_report_from_serializable(config=item.config, data=data)
        """
    )
    pytester.makepyfile(test_engine=_THREE_TESTS)
    assert len(summary(run_with_plugin("--pinprobe"))) == 8


# -- without being asked


def test_without_the_option_and_the_fixture_a_run_prints_what_it_printed_before(
    pytester: pytest.Pytester, run_plain: Run, run_with_plugin: Run
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def broken():
            raise OSError("no device")

        def test_passes(): pass
        def test_fails(): assert [1] == [2]
        def test_errors(broken): pass
        @pytest.mark.skip
        def test_skips(): pass
        """
    )
    without, with_it = (
        re.sub(r"in \d+\.\d+s", "in no time", run("-rA").stdout.str()) for run in (run_plain, run_with_plugin)
    )
    assert with_it == without
    assert "1 failed, 1 passed, 1 skipped, 1 error" in with_it


_LOADED = """
import sys
import pytest

pytest.main(["-q", "-p", "%s", "test_it.py"])
heavy = {"torch", "pydantic", "yaml", "rich", "psutil", "numpy", "click"}
print("loaded:", *sorted(name for name in sys.modules if name in heavy or name.split(".")[0] == "pinprobe"))
"""


def loaded(pytester: pytest.Pytester, test: str) -> list[str]:
    pytester.makepyfile(test_it=test)
    done = subprocess.run([sys.executable, "-c", _LOADED % PLUGIN], capture_output=True, text=True, check=True)
    assert "1 passed" in done.stdout, done.stdout
    return done.stdout.splitlines()[-1].split()[1:]


@pytest.mark.usefixtures("run_plain")
def test_the_plugin_loads_nothing_until_a_test_asks_for_the_ledger(pytester: pytest.Pytester) -> None:
    plain = loaded(pytester, "def test_it(): pass")
    assert plain == ["pinprobe", "pinprobe.cli", PLUGIN]
    # Without this, a slip in the list would make the line above pass for ever.
    asked = loaded(pytester, "def test_it(host_pinned_ledger): pass")
    assert "pinprobe.ledger.ledger" in asked
    assert not {"torch", "pydantic", "yaml"} & set(asked)
