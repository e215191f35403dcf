"""How long `pinprobe --help` and `--version` take to start, beside an interpreter that does nothing.

Limit: 150 ms in the median. Run it with `python benchmarks/startup.py`; it exits 1 where the limit is passed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

RUNS = 15
LIMIT_SECONDS = 0.150
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "pinprobe --version": ["-m", "pinprobe", "--version"],
    "pinprobe --help": ["-m", "pinprobe", "--help"],
}


def seconds(arguments: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> int:
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for name, arguments in COMMANDS.items():
        seconds(arguments)  # the first run fills the file cache and writes byte code
        assert taken[name] == []
    for _ in range(RUNS):  # in turn, so that a change of the machine's speed meets all of them
        for name, arguments in COMMANDS.items():
            taken[name].append(seconds(arguments))
    print(f"limit: {LIMIT_SECONDS * 1000:.0f} ms in the median of {RUNS} runs")
    medians = {name: statistics.median(values) for name, values in taken.items()}
    for name, values in taken.items():
        spread = f"{min(values) * 1000:.1f} to {max(values) * 1000:.1f}"
        print(f"{name:<20} {medians[name] * 1000:6.1f} ms ({spread})")
    return int(max(medians.values()) > LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
