"""The sdist and the wheel are built, installed apart from this checkout, and run."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    source = folder / "checkout"
    tracked = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    for name in filter(None, tracked):
        if (ROOT / name).exists() and not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_symlink():
                (source / name).symlink_to((ROOT / name).readlink())
            else:
                (source / name).write_bytes((ROOT / name).read_bytes())
    # The wheel is built from the sdist, as an index would have it.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", source, cwd=folder)
    return folder / "dist"


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    (archive,) = built.glob("*.whl" if request.param == "wheel" else "*.tar.gz")
    target = tmp_path_factory.mktemp(request.param)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    run(*pip, target, archive, cwd=target)
    return target


def test_what_is_installed_runs_from_there(installed: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(installed), "PINPROBE_CACHE_DIR": str(tmp_path / "cache")}
    where = "import pinprobe.cli.main as m, sys; print(m.__file__)"
    assert run(sys.executable, "-c", where, cwd=tmp_path, env=env).startswith(str(installed))
    probe = [sys.executable, "-m", "pinprobe", "probe", "--bytes", "3000000", "--allocator", "pageable", "--csv"]
    assert "pinned,3000000,3002368," in run(*probe, cwd=tmp_path, env=env)


def test_the_source_to_compile_and_the_types_come_along(installed: Path) -> None:
    assert (installed / "pinprobe" / "probes" / "allocators" / "torch_host.cpp").is_file()
    assert (installed / "pinprobe" / "py.typed").is_file()


def test_pytest_finds_the_plugin_by_its_entry_point(installed: Path, tmp_path: Path) -> None:
    (entries,) = installed.glob("pinprobe-*.dist-info/entry_points.txt")
    assert "[pytest11]\npinprobe = pinprobe.cli.pytest_plugin" in entries.read_text(encoding="utf-8")
    (tmp_path / "test_it.py").write_text("def test_it(host_pinned_ledger): pass\n", encoding="utf-8")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env = {**kept, "PYTHONPATH": str(installed)}
    printed = run(sys.executable, "-m", "pytest", "-W", "error", "--pinprobe", cwd=tmp_path, env=env)
    assert "test_it.py::test_it  0.000" in printed


def test_the_configs_come_along_and_are_found_by_name(installed: Path, tmp_path: Path) -> None:
    names = {path.name for path in (ROOT / "configs").iterdir()}
    assert {path.name for path in (installed / "pinprobe" / "configs").iterdir()} == names
    env = {**os.environ, "PYTHONPATH": str(installed)}
    check = [sys.executable, "-m", "pinprobe", "check", "savepoint-ring-64"]
    assert "1 of 1 checks hold" in run(*check, cwd=tmp_path, env=env)


def test_no_common_name_lands_in_site_packages(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pinprobe"}


def test_the_sdist_holds_real_files_and_no_link_out_of_it(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert not [member.name for member in archive.getmembers() if member.issym()]
