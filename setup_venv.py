"""Makes a virtual environment with pinprobe in it, and says first what that will download, and how much it is.

Usage: setup_venv.py FOLDER [EXTRA...]     with TORCH and TORCH_INDEX from the environment, as the Makefile explains.

Standard library only, since it runs before anything is installed. It writes into FOLDER and pip's cache, nowhere else.
Torch is the one part that may fail: without it pinprobe still measures, and says what it measured.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlsplit

OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 9)
HERE = Path(__file__).resolve().parent


def main():
    """Set up the environment named on the command line."""
    folder, extras = Path(sys.argv[1]), sys.argv[2:]
    check_python()
    python = make_venv(folder)
    torch_arguments = choose_torch(python)
    own_arguments = ["--editable", f"{HERE}[{','.join(extras)}]" if extras else str(HERE)]
    if install(python, own_arguments, announce(python, own_arguments, "pinprobe and what it stands on")):
        fail("pip could not install pinprobe; what it said is above")
    if torch_arguments and install(
        python, torch_arguments, announce(python, torch_arguments, "torch, for PyTorch's own allocator")
    ):
        say("torch could not be installed (pip's words are above), so mlock will be measured in its stead;")
        say("TORCH_INDEX=URL takes it from another index, TORCH=none stops asking for it")


def check_python():
    """Stop with a line where this Python is too old or can't make environments."""
    if sys.version_info < OLDEST_PYTHON:
        have = ".".join(map(str, sys.version_info[:2]))
        fail(f"pinprobe needs Python 3.10 or later, and this one is {have}; name another: make PYTHON=python3.12 ...")
    if importlib.util.find_spec("ensurepip") is None:
        fail("this Python can't make virtual environments (it has no ensurepip); on Debian: apt install python3-venv")


def make_venv(folder):
    """Make the environment where there is none that works, and return its interpreter."""
    python = folder / "bin" / "python"
    if not (folder / "pyvenv.cfg").is_file() or subprocess.run([str(python), "-c", ""], check=False).returncode:
        say(f"making a virtual environment in {folder}")
        if subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=False).returncode:
            fail(f"the virtual environment could not be made in {folder}")
    return python


def choose_torch(python):
    """Return what to give pip for torch: nothing where there is one already, or where none is wanted."""
    if os.environ.get("TORCH") == "none":
        say("TORCH=none: no torch is installed; mlock will be measured in its stead")
        return []
    if (
        subprocess.run(
            [str(python), "-c", "import importlib.util as u, sys; sys.exit(not u.find_spec('torch'))"]
        ).returncode
        == 0
    ):
        return []
    existing = existing_torch()
    if existing is not None:
        version, site = existing
        say(f"using the torch {version} that is installed in {site}")
        libraries = subprocess.check_output(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        )
        # A .pth line puts that folder last on the path: its torch is found, and everything else comes from this
        # environment.
        (Path(libraries.decode().strip()) / "existing_torch.pth").write_text(f"{site}\n", encoding="utf-8")
        return []
    index = os.environ.get("TORCH_INDEX")
    return ["torch", *(["--index-url", index] if index else [])]


def existing_torch():
    """Return (version, site folder) of a new enough torch beside this interpreter, else None."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    try:
        text = (package / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"^__version__ *= *['\"]((\d+)\.(\d+)[^'\"]*)['\"]", text, re.MULTILINE)
    if match is None or (int(match[2]), int(match[3])) < OLDEST_TORCH:
        return None
    return match[1], package.parent


def announce(python, arguments, purpose):
    """Print what pip is about to download, with its size as the server gives it; return whether that is a lot."""
    command = [*pip(python), "--quiet", "--dry-run", "--report", "-", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["install"]
    except (ValueError, KeyError, TypeError):
        say(f"installing {purpose}; pip could not tell beforehand what that downloads")
        return True
    sizes = {}
    for package in packages:
        url = package["download_info"]["url"]
        if not (urlsplit(url).scheme == "file" and Path(unquote(urlsplit(url).path)).is_dir()):  # not this checkout
            sizes[package["metadata"]["name"]] = download_bytes(url)
    if not sizes:
        return False
    known = sum(size for size in sizes.values() if size)
    largest = sorted((size, name) for name, size in sizes.items() if size)[-3:]
    names = ", ".join(f"{name} {size / 1e6:.1f} MB" for size, name in reversed(largest))
    unknown = sum(size is None for size in sizes.values())
    rest = f"; {unknown} of unknown size" if unknown else ""
    say(f"installing {purpose}: {len(sizes)} packages, {known / 1e6:.1f} MB ({names}){rest}")
    if known > 1e9:
        say("an index of CPU wheels makes that a tenth (PyTorch's site names one): TORCH_INDEX=URL")
        say("and TORCH=none does without torch; Ctrl-C stops here")
    return known > 1e8 or unknown > 0


def download_bytes(url):
    """Return a download's size, or None where its server does not tell."""
    try:
        if urlsplit(url).scheme == "file":
            return Path(unquote(urlsplit(url).path)).stat().st_size
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, ValueError, TypeError):
        return None


def install(python, arguments, is_large):
    """Run pip and return its exit code. A large download shows how far it is; of a small one only errors are shown."""
    quiet = [] if is_large else ["--quiet"]
    return subprocess.run([*pip(python), *quiet, *arguments], check=False).returncode


def pip(python):
    """Return the start of a pip command."""
    return [str(python), "-m", "pip", "install", "--constraint", str(HERE / "constraints.txt")]


def say(message):
    """Print a line of progress."""
    print(f"setup: {message}", file=sys.stderr, flush=True)


def fail(message):
    """Print a line and stop."""
    say(message)
    sys.exit(1)


if __name__ == "__main__":
    main()
