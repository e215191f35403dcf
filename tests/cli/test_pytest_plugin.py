"""The pytest plugin, in a pytest of its own: each test here writes tests, runs them in a child and reads what came."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run

pytest_plugins = ["pytester"]

GUIDE = Path(__file__).parents[2] / "docs" / "pytest.md"
_BLOCK = re.compile(r"^```python\n# (\w+)\.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def said(result: pytest.RunResult) -> str:
    return result.stdout.str()


# -- the fixture


def test_a_test_whose_ledger_holds_passes_and_nothing_is_printed_of_it(
    pytester: pytest.Pytester, run_with_plugin: Run
) -> None:
    pytester.makepyfile(
        """
        from pinprobe.ledger.ledger import HostPinnedLedger
        from taking import MIB, reserve

        def test_it(host_pinned_ledger):
            assert type(host_pinned_ledger) is HostPinnedLedger
            with reserve(host_pinned_ledger) as held:
                assert held.booked_bytes == 4 * MIB

        def test_the_next_begins_anew(host_pinned_ledger):
            assert host_pinned_ledger.peak_bytes == 0
        """
    )
    result = run_with_plugin()
    result.assert_outcomes(passed=2)
    assert "pinprobe" not in said(result).replace(str(pytester.path), "")


def test_a_row_booked_below_what_is_resident_fails_the_test_with_its_figures(
    pytester: pytest.Pytester, run_with_plugin: Run
) -> None:
    # The ledger does not let this come to be, so the fake stands in its place: a book of what was asked.
    pytester.makepyfile(
        """
        from dataclasses import replace
        from taking import reserve

        class FakeBookOfAsks:
            def __init__(self, ledger):
                self.verify_honestly = ledger.verify

            def verify(self):
                account = self.verify_honestly()
                rows = [replace(row, booked_bytes=row.asked_bytes) for row in account.reserved]
                return replace(account, rows=tuple(rows))

        def test_it(host_pinned_ledger):
            held = [reserve(host_pinned_ledger), reserve(host_pinned_ledger, "kv.ring", 5 * 2**20, 8 * 2**20)]
            exact = reserve(host_pinned_ledger, "kv.exact", 4 * 2**20, 4 * 2**20)
            host_pinned_ledger.verify = FakeBookOfAsks(host_pinned_ledger).verify
            host_pinned_ledger.kept_alive = held, exact
        """
    )
    result = run_with_plugin()
    result.assert_outcomes(passed=1, errors=1)
    text = said(result)
    assert "2 rows not shown to be booked at what is resident or more" in text
    assert "  kv.store: asked 3,145,728 B, booked 3,145,728 B, resident 4,194,304 B" in text
    assert "  kv.ring: asked 5,242,880 B, booked 5,242,880 B, resident 8,388,608 B" in text
    assert "kv.exact: asked" not in text
    assert "Traceback" not in text
    assert "pytest_plugin.py" not in text


def test_what_can_not_be_read_fails_the_test_with_the_reason(pytester: pytest.Pytester, run_with_plugin: Run) -> None:
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
    result = run_with_plugin()
    result.assert_outcomes(passed=1, errors=1)
    assert re.search(r"kv\.opaque: asked 4,096 B, booked 4,096 B, resident unreadable, because it shows", said(result))


def test_what_a_test_leaves_reserved_is_given_back_to_the_kernel(
    pytester: pytest.Pytester, run_with_plugin: Run
) -> None:
    pytester.makepyfile(
        """
        import ctypes
        from pathlib import Path
        from pinprobe.probes.extents import find_extents
        from taking import MIB, reserve

        leaked = []

        def mapped_at(address):
            return any(line.startswith(f"{address:x}-") for line in Path("/proc/self/maps").read_text().splitlines())

        def test_one_leaks(host_pinned_ledger):
            reservation = reserve(host_pinned_ledger, free=lambda block: block.close())
            address = find_extents(reservation.value, 0)[0].start
            assert mapped_at(address)
            leaked.extend([reservation, address])

        def test_and_the_next_does_not_pay_for_it(host_pinned_ledger):
            reservation, address = leaked
            assert not mapped_at(address)
            assert reservation.booked_bytes == 0
        """
    )
    run_with_plugin().assert_outcomes(passed=2)


def test_a_free_that_raises_is_told_and_the_next_test_runs(pytester: pytest.Pytester, run_with_plugin: Run) -> None:
    pytester.makepyfile(
        """
        from taking import reserve

        def refuse(block):
            raise OSError("the driver is gone")

        def test_it(host_pinned_ledger):
            host_pinned_ledger.kept_alive = reserve(host_pinned_ledger, free=refuse)

        def test_next(host_pinned_ledger):
            reserve(host_pinned_ledger).release()
        """
    )
    result = run_with_plugin()
    result.assert_outcomes(passed=2, errors=1)
    assert "the driver is gone" in said(result)


# -- the limit


@pytest.mark.parametrize("size", ['"4 MiB"', "4194304", '"4,194,304"'])
def test_a_limit_refuses_before_a_byte_is_taken(pytester: pytest.Pytester, run_with_plugin: Run, size: str) -> None:
    pytester.makepyfile(
        f"""
        import pytest
        from pinprobe.probes.errors import Refused
        from taking import MIB, reserve

        def must_not_run():
            raise AssertionError("memory was taken")

        @pytest.mark.pinned_limit({size})
        def test_it(host_pinned_ledger):
            with pytest.raises(Refused) as refused:
                host_pinned_ledger.reserve("kv.store", 4 * MIB + 1, must_not_run)
            assert refused.value.room_bytes == 4 * MIB
            with reserve(host_pinned_ledger, asked=4 * MIB):
                pass
        """
    )
    run_with_plugin().assert_outcomes(passed=1)


def test_the_nearest_limit_counts_and_an_inherited_one_need_not_be_used(
    pytester: pytest.Pytester, run_with_plugin: Run
) -> None:
    pytester.makepyfile(
        """
        import pytest
        from taking import MIB

        pytestmark = pytest.mark.pinned_limit("4 MiB")

        def limit(ledger):
            return ledger.verify().limit_bytes

        @pytest.fixture
        def engine(host_pinned_ledger):
            return host_pinned_ledger

        def test_of_the_module(host_pinned_ledger):
            assert limit(host_pinned_ledger) == 4 * MIB

        @pytest.mark.pinned_limit("2 MiB")
        def test_its_own_through_a_fixture_of_ours(engine):
            assert limit(engine) == 2 * MIB

        @pytest.mark.parametrize("size", [pytest.param(MIB, marks=pytest.mark.pinned_limit("1 MiB"))])
        def test_of_a_parameter(host_pinned_ledger, size):
            assert limit(host_pinned_ledger) == size

        @pytest.mark.usefixtures("host_pinned_ledger")
        class TestGroup:
            pytestmark = pytest.mark.pinned_limit("3 MiB")

            def test_of_the_class(self, host_pinned_ledger):
                assert limit(host_pinned_ledger) == 3 * MIB

            @pytest.mark.pinned_limit("2 MiB")
            def test_by_usefixtures(self):
                pass

        def test_of_something_else():
            pass
        """
    )
    run_with_plugin("--strict-markers").assert_outcomes(passed=6)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ('"64g"', "ambiguous"),
        ('"many"', "not a size"),
        ("0", "1 byte or more"),
        ("-1", "not a size"),
        ("2**80", "any address space"),
        ("4.5", "neither bytes nor text"),
        ("True", "neither bytes nor text"),
        ("None", "neither bytes nor text"),
        ("", "takes one size"),
        ('"4 GiB", "8 GiB"', "takes one size"),
        ('size="4 GiB"', "takes one size"),
    ],
)
def test_a_limit_that_is_none_ends_the_run_with_one_line(
    pytester: pytest.Pytester, run_with_plugin: Run, arguments: str, word: str
) -> None:
    pytester.makepyfile(
        test_it=f"""
        import pytest

        def test_that_is_fine():
            pass

        @pytest.mark.parametrize("number", [1, 2])
        @pytest.mark.pinned_limit({arguments})
        def test_that_is_limited(host_pinned_ledger, number):
            pass
        """
    )
    result = run_with_plugin()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.stderr.lines if line.strip()]
    assert line.startswith("ERROR: test_it.py::test_that_is_limited: pinned_limit")
    assert word in line
    assert "passed" not in said(result)


def test_a_limit_that_bounds_nothing_ends_the_run_and_says_what_to_do(
    pytester: pytest.Pytester, run_with_plugin: Run
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.pinned_limit("4 GiB")
        def test_without(tmp_path):
            pass

        def test_other():
            pass
        """
    )
    result = run_with_plugin()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.stderr.lines if line.strip()]
    assert line.startswith("ERROR: test_it.py::test_without: pinned_limit bounds nothing")
    assert "name it as an argument" in line
    run_with_plugin("-k", "other").assert_outcomes(passed=1, deselected=1)


def test_the_marker_is_registered_and_explained(run_with_plugin: Run) -> None:
    assert "@pytest.mark.pinned_limit(size): at most this may be reserved in host_pinned_ledger" in said(
        run_with_plugin("--markers")
    )


# -- a test that fails


def test_a_failure_shows_the_ledger_where_something_was_reserved_and_nowhere_else(
    pytester: pytest.Pytester, run_with_plugin: Run
) -> None:
    pytester.makepyfile(
        """
        import pytest
        from taking import reserve

        def test_reserved(host_pinned_ledger):
            ring = reserve(host_pinned_ledger, "kv.ring")
            assert ring.booked_bytes == ring.asked_bytes

        def test_nothing_reserved(host_pinned_ledger):
            assert host_pinned_ledger.peak_bytes

        def test_without():
            assert not 1

        @pytest.mark.xfail
        def test_expected_to(host_pinned_ledger):
            store = reserve(host_pinned_ledger, "kv.expected")
            assert not store

        def test_passes(host_pinned_ledger):
            reserve(host_pinned_ledger, "kv.passed").release()
            print("shown of a test that passed")
        """
    )
    result = run_with_plugin("-rP")
    result.assert_outcomes(failed=3, xfailed=1, passed=1)
    text = said(result)
    assert len(re.findall("^-+ pinprobe ledger -+$", text, re.MULTILINE)) == 1
    after = text.index("pinprobe ledger -")
    assert text.index("_ test_reserved _") < after < text.index("_ test_nothing_reserved _")
    assert re.search(r"^kv\.ring +4\.000 MiB +3\.000 MiB +4\.000 MiB +1\.333$", text, re.MULTILINE)
    assert "kv.expected" not in text
    assert "shown of a test that passed" in text


def test_a_ledger_that_can_not_be_shown_does_not_end_the_run(pytester: pytest.Pytester, run_with_plugin: Run) -> None:
    # What a test patched is still patched when its report is made.
    pytester.makepyfile(
        """
        from pathlib import Path
        from taking import reserve

        def refuse(*arguments, **options):
            raise RuntimeError("no files in this test")

        def test_patched(host_pinned_ledger, monkeypatch):
            held = reserve(host_pinned_ledger)
            monkeypatch.setattr("pinprobe.probes.host_tree.HostTree.text", refuse)
            assert not held

        def test_next():
            pass
        """
    )
    result = run_with_plugin()
    result.assert_outcomes(failed=1, passed=1)
    assert "can't be shown: RuntimeError: no files in this test" in said(result)


# -- the guide


def test_the_examples_of_the_guide_run_and_print_what_it_shows(pytester: pytest.Pytester, run_with_plugin: Run) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    blocks = dict(_BLOCK.findall(text))
    assert set(blocks) == {"store", "test_store", "test_store_that_asks", "test_limit"}
    assert text.count("```python") == len(blocks)
    for name, code in blocks.items():
        (pytester.path / f"{name}.py").write_text(code, encoding="utf-8")
    result = run_with_plugin()
    result.assert_outcomes(failed=1, passed=2)
    (shown,) = re.findall(r"^```\n(E .*)\n```$", text, re.MULTILINE)
    assert shown in result.stdout.lines
