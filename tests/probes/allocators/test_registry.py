"""Names, what `auto` takes and passes over, and allocators of others that are broken."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pinprobe.probes.allocators import registry, torch_host_build
from pinprobe.probes.allocators.allocator import Allocator
from pinprobe.probes.allocators.registry import AUTO_ORDER, allocator_names, prepare_allocator
from pinprobe.probes.errors import AllocatorUnavailable, BadRequest, ChildDied
from pinprobe.probes.own_mapping import OwnMapping
from pinprobe.probes.reading import Unreadable

_WHOLE = """
class Borrowed:
    name = "{name}"
    counter = "RssAnon"
    @classmethod
    def prepare(cls, largest_bytes): {prepare}
    def notes(self): return ()
    def allocated_bytes(self): return None
    def allocate(self, asked_bytes): raise NotImplementedError
    def empty_cache(self): pass
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a package that registers one allocator, for the length of a test."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, source: str, target: str = ":Borrowed", module: str = "") -> None:
        module = module or f"borrowed_{tmp_path.name}_{len(list(tmp_path.iterdir()))}".replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source)
        folder = tmp_path / f"{module}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[pinprobe.allocators]\n{name} = {module}{target}\n")

    return install


def _without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_host_build, "find_installed_torch", lambda: Unreadable("torch is not installed"))


def _without_mlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnMapping, "lock_allowed", lambda mapping: errno.ENOMEM)


# auto. An accelerator would come first; these tests are about a machine without one.


@pytest.fixture
def _no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    order = [name for name in AUTO_ORDER if name != "torch"]
    assert order == ["torch-host", "mlock", "pageable"], "the last is what every machine has"
    monkeypatch.setattr(registry, "AUTO_ORDER", tuple(order))


@pytest.mark.usefixtures("_no_accelerator")
def test_auto_takes_torchs_own_allocator_first(torch_host: Allocator) -> None:
    found = prepare_allocator("auto", 4096)
    assert (found.allocator.name, found.passed_over) == ("torch-host", ())


@pytest.mark.usefixtures("_no_accelerator")
def test_without_torch_auto_takes_mlock_and_says_why(
    prepared: Callable[..., Allocator], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared("mlock", 4096)
    _without_torch(monkeypatch)
    found = prepare_allocator("auto", 4096)
    assert found.allocator.name == "mlock"
    assert [(name, error.reason) for name, error in found.passed_over] == [("torch-host", "torch is not installed")]


@pytest.mark.usefixtures("_no_accelerator")
def test_without_torch_and_without_mlock_auto_takes_pageable_and_says_why_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _without_torch(monkeypatch)
    _without_mlock(monkeypatch)
    found = prepare_allocator("auto", 4096)
    assert found.allocator.name == "pageable"
    assert [name for name, _ in found.passed_over] == ["torch-host", "mlock"]
    assert all("\n" not in str(error) and error.remedy for _, error in found.passed_over)


@pytest.mark.usefixtures("_no_accelerator")
def test_auto_passes_over_a_torch_whose_allocator_kills_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(must_run: object) -> Path:
        raise ChildDied("the measuring process was ended by SIGSEGV")

    monkeypatch.setattr("pinprobe.probes.allocators.torch_host.find_or_build", dies)
    assert prepare_allocator("auto", 4096).passed_over[0][0] == "torch-host"


@pytest.mark.parametrize("name", AUTO_ORDER)
def test_what_auto_tries_has_a_name_of_its_own_too(name: str) -> None:
    assert name in allocator_names()


def test_a_name_that_was_asked_for_is_not_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_mlock(monkeypatch)
    with pytest.raises(AllocatorUnavailable, match="mlock"):
        prepare_allocator("mlock", 4096)


# Names


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("mlok", "mlock"), ("torch-hos", "torch-host"), ("torchhost", "torch-host"), ("Pageable", "pageable")],
)
def test_an_unknown_name_gets_the_near_one(wrong: str, near: str) -> None:
    with pytest.raises(BadRequest) as caught:
        prepare_allocator(wrong, 4096)
    assert str(caught.value) == f"no allocator is called {wrong!r}; did you mean {near}?"


@pytest.mark.parametrize("wrong", ["", "zzz", "mlock\nmlock" * 3, "\0"])
def test_a_name_near_to_none_gets_the_list_in_one_line(wrong: str) -> None:
    with pytest.raises(BadRequest) as caught:
        prepare_allocator(wrong, 4096)
    assert str(caught.value).endswith("known are auto, " + ", ".join(allocator_names()))
    assert "\n" not in str(caught.value)


def test_naming_the_allocators_loads_none_of_them() -> None:
    script = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from pinprobe.probes.allocators.registry import allocator_names\n"
        "allocator_names()\n"
        "heavy = ('.torch_host', '.mlock', '.pageable')\n"
        "print([name for name in sys.modules if name.endswith(heavy) or name == 'torch'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


# Others' allocators


def test_an_allocator_of_another_package_is_found_by_its_name(installed: Callable[..., None]) -> None:
    installed("borrowed", _WHOLE.format(name="borrowed", prepare="return cls()"))
    assert allocator_names()[-1] == "borrowed"
    assert prepare_allocator("borrowed", 4096).allocator.name == "borrowed"


def test_an_allocator_of_another_package_is_suggested_too(installed: Callable[..., None]) -> None:
    installed("borrowed", _WHOLE.format(name="borrowed", prepare="return cls()"))
    with pytest.raises(BadRequest, match=r"did you mean borrowed\?"):
        prepare_allocator("borowed", 4096)


def test_another_package_can_not_take_the_name_of_one_of_ours(installed: Callable[..., None]) -> None:
    installed("pageable", _WHOLE.format(name="impostor", prepare="return cls()"))
    assert allocator_names().count("pageable") == 1
    assert prepare_allocator("pageable", 4096).allocator.name == "pageable"


_BROKEN = {
    "an import that fails": ("import no_such_module_anywhere\n", ":Borrowed"),
    "an error of several lines": ("raise RuntimeError('first line\\nsecond line')\n", ":Borrowed"),
    "no such class": ("", ":Borrowed"),
    "a syntax error": ("def\n", ":Borrowed"),
    "a class without allocate": (
        "class Borrowed:\n    name = counter = 'x'\n    prepare = notes = print\n",
        ":Borrowed",
    ),
    "a module instead of a class": ("", ""),
}


@pytest.mark.parametrize("kind", _BROKEN)
def test_a_broken_entry_point_is_unavailable_in_one_line(installed: Callable[..., None], kind: str) -> None:
    source, target = _BROKEN[kind]
    installed("borrowed", source, target)
    with pytest.raises(AllocatorUnavailable) as caught:
        prepare_allocator("borrowed", 4096)
    message = str(caught.value)
    assert message.startswith("the allocator borrowed (borrowed_")
    assert "\n" not in message


def test_a_module_that_is_not_there_is_unavailable(installed: Callable[..., None]) -> None:
    installed("borrowed", "", target="_and_more:Borrowed")
    with pytest.raises(AllocatorUnavailable, match="can't be loaded"):
        prepare_allocator("borrowed", 4096)


@pytest.mark.parametrize("raised", ["RuntimeError('no driver')", "OSError(2, 'no such device')"])
def test_a_prepare_of_others_that_raises_anything_is_unavailable_in_one_line(
    installed: Callable[..., None], raised: str
) -> None:
    installed("borrowed", _WHOLE.format(name="borrowed", prepare=f"raise {raised}"))
    with pytest.raises(AllocatorUnavailable, match="no "):
        prepare_allocator("borrowed", 4096)


def test_a_broken_entry_point_does_not_hinder_the_others(installed: Callable[..., None]) -> None:
    installed("borrowed", "raise RuntimeError('broken')\n")
    assert "borrowed" in allocator_names()
    assert prepare_allocator("pageable", 4096).allocator.name == "pageable"
