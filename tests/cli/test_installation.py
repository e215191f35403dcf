"""`setup_venv.py`, which the Makefile runs before anything is installed: its choices, offline."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

_CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def setup_venv(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with nothing of the caller's choices in the environment."""
    for name in ("TORCH", "TORCH_INDEX"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("setup_venv", _CHECKOUT / "setup_venv.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def put_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], Path]:
    """Put a torch of that version (or one without a version file) before any other on the path."""

    def put(version: str | None) -> Path:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").touch()
        if version is not None:
            (tmp_path / "torch" / "version.py").write_text(f"{version}\n", encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        return tmp_path

    return put


def fake_python(folder: Path, *, has_torch: bool, libraries: Path) -> Path:
    """An interpreter that answers the two questions the script asks of it."""
    script = folder / "fake-python"
    script.write_text(
        f"#!/bin/sh\ncase $2 in *find_spec*) exit {0 if has_torch else 1};; *) echo '{libraries}';; esac\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    return script


# -- an existing torch


@pytest.mark.parametrize("line", ["__version__ = '2.13.0+cpu'", '__version__ = "2.13.0+cpu"'])
def test_a_torch_that_is_installed_is_found_with_its_place(
    setup_venv: ModuleType, put_torch: Callable[[str | None], Path], line: str
) -> None:
    place = put_torch(line)
    assert setup_venv.existing_torch() == ("2.13.0+cpu", place)


@pytest.mark.parametrize(
    "line", ["__version__ = '2.8.0'", "__version__ = '1.13.1'", "__version__ = 'unknown'", "", None]
)
def test_a_torch_that_is_too_old_or_has_no_version_is_passed_over(
    setup_venv: ModuleType, put_torch: Callable[[str | None], Path], line: str | None
) -> None:
    put_torch(line)
    assert setup_venv.existing_torch() is None


def test_an_existing_torch_is_used_by_a_path_line_and_nothing_is_downloaded(
    setup_venv: ModuleType,
    put_torch: Callable[[str | None], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = put_torch("__version__ = '2.13.0'")
    libraries = tmp_path / "site-packages"
    libraries.mkdir()
    assert setup_venv.choose_torch(fake_python(tmp_path, has_torch=False, libraries=libraries)) == []
    (path_file,) = libraries.iterdir()
    assert path_file.suffix == ".pth"
    assert path_file.read_text(encoding="utf-8") == f"{place}\n"
    assert f"using the torch 2.13.0 that is installed in {place}" in capsys.readouterr().err


def test_an_environment_that_has_torch_already_is_left_as_it_is(setup_venv: ModuleType, tmp_path: Path) -> None:
    assert setup_venv.choose_torch(fake_python(tmp_path, has_torch=True, libraries=tmp_path)) == []
    assert [path.suffix for path in tmp_path.iterdir()] == [""]


# -- the user's choices


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        ({}, ["torch"]),
        ({"TORCH_INDEX": "https://example.org/cpu"}, ["torch", "--index-url", "https://example.org/cpu"]),
        ({"TORCH": "none"}, []),
        ({"TORCH": "none", "TORCH_INDEX": "https://example.org/cpu"}, []),
        ({"TORCH": "", "TORCH_INDEX": ""}, ["torch"]),
    ],
    ids=["default", "index", "none", "none and index", "empty, as make exports it"],
)
def test_the_user_chooses_whether_torch_comes_and_from_where(
    setup_venv: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    chosen: list[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(setup_venv, "existing_torch", lambda: None)
    assert setup_venv.choose_torch(fake_python(tmp_path, has_torch=False, libraries=tmp_path)) == chosen


def test_a_python_too_old_is_told_with_a_way_out(
    setup_venv: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup_venv, "OLDEST_PYTHON", (99, 0))
    with pytest.raises(SystemExit) as ended:
        setup_venv.check_python()
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "make PYTHON=" in line


# -- what is said before a download


def announce(module: ModuleType, folder: Path, report: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = folder / "fake-pip.py"
    pip.write_text(f"print({report!r})\n", encoding="utf-8")
    monkeypatch.setattr(module, "pip", lambda python: [sys.executable, str(pip)])
    module.announce(Path(sys.executable), ["torch"], "torch")


def report_of(*sizes: tuple[str, Path]) -> str:
    return json.dumps({"install": [package(name, path) for name, path in sizes]})


def package(name: str, path: Path) -> dict[str, object]:
    return {"metadata": {"name": name}, "download_info": {"url": path.as_uri()}}


def wheel(folder: Path, name: str, size_bytes: int) -> tuple[str, Path]:
    path = folder / f"{name} 1.0.whl"  # a space, which a URL has to escape
    with path.open("wb") as file:
        file.truncate(size_bytes)
    return name, path


def test_what_will_be_downloaded_is_said_first_with_its_size(
    setup_venv: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheels = [wheel(tmp_path, "torch", 180_000_000), wheel(tmp_path, "sympy", 6_500_000)]
    gone = ("gone", tmp_path / "gone.whl")
    checkout = ("pinprobe", _CHECKOUT)
    announce(setup_venv, tmp_path, report_of(*wheels, gone, checkout), monkeypatch)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "setup: installing torch: 3 packages, 186.5 MB (torch 180.0 MB, sympy 6.5 MB); 1 of unknown size"


def test_a_download_of_gigabytes_has_a_way_around_it(
    setup_venv: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    announce(setup_venv, tmp_path, report_of(wheel(tmp_path, "torch", 2_500_000_000)), monkeypatch)
    lines = capsys.readouterr().err.splitlines()
    assert "2500.0 MB" in lines[0]
    assert "TORCH_INDEX=" in lines[1]


def test_nothing_to_download_is_not_worth_a_line(
    setup_venv: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    announce(setup_venv, tmp_path, report_of(("pinprobe", _CHECKOUT)), monkeypatch)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("report", ["", "ERROR: no network", "{}", "[]"])
def test_a_pip_that_can_not_tell_is_said_to_be_so(
    setup_venv: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    report: str,
) -> None:
    announce(setup_venv, tmp_path, report, monkeypatch)
    assert "could not tell beforehand" in capsys.readouterr().err


def test_a_server_that_does_not_answer_gives_an_unknown_size(setup_venv: ModuleType) -> None:
    assert setup_venv.download_bytes("http://127.0.0.1:9/torch.whl") is None


# -- the Makefile


def test_make_sweep_and_make_test_set_themselves_up(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("there is no make here")
    for target, command in (("sweep", "pinprobe sweep --slot-bytes 154927104"), ("test", "python -m pytest")):
        # Nothing is run: -n only prints, and the environment it would make does not exist.
        done = subprocess.run(
            ["make", "-n", target, f"VENV={tmp_path}/venv"], cwd=_CHECKOUT, capture_output=True, text=True, check=True
        )
        setup, _, then = done.stdout.partition(command)
        assert f"setup_venv.py {tmp_path}/venv" in setup
        assert then or done.stdout.rstrip().endswith(command)


def test_make_alone_says_what_there_is() -> None:
    if shutil.which("make") is None:
        pytest.skip("there is no make here")
    done = subprocess.run(["make"], cwd=_CHECKOUT, capture_output=True, text=True, check=True)
    for target in ("sweep", "test", "lint", "bench"):
        assert f"make {target}" in done.stdout
