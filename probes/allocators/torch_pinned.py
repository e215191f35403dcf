"""`torch`: what `torch.empty(pin_memory=True)` gives, on whatever accelerator the installed torch has.

CUDA, ROCm and XPU are asked by the same call. Importing torch and bringing up its runtime take seconds and hundreds of
mebibytes, so both are done before the first reading, in the measuring process.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pinprobe.probes.errors import AllocationFailed, AllocatorUnavailable, NoAccelerator
from pinprobe.probes.installed_torch import find_installed_torch
from pinprobe.probes.reading import Unreadable

# What the kernel shows where an accelerator's driver is loaded: NVIDIA, AMD's compute driver, and a render node (Intel
# and AMD).
_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD128", "/dev/dxg")
_ASK = "import torch; a = torch.accelerator; print(a.current_accelerator() if a.is_available() else 'none')"
_ASK_TIMEOUT_SECONDS = 120


class PinnedTensor:
    """A pinned tensor of bytes. Letting go of it gives its block back to torch, which keeps it."""

    note = "by torch"

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.address: int = tensor.data_ptr()

    def release(self) -> None:
        """Let go of the tensor."""
        self.tensor = None


class TorchPinned:
    """Torch's pinned memory on an accelerator."""

    name = "torch"

    def __init__(self, accelerator: str) -> None:
        self.accelerator = accelerator
        # The CUDA and ROCm drivers back it with shared anonymous mappings. Of the others that has not been seen.
        self.counter = "RssShmem" if accelerator.startswith("cuda") else "VmRSS"

    @classmethod
    def prepare(cls, largest_bytes: int) -> TorchPinned:
        """Find out, in a process of its own, whether torch is there and has an accelerator."""
        torch = find_installed_torch()
        if isinstance(torch, Unreadable):
            raise AllocatorUnavailable(torch.reason, "`pip install torch` into this environment brings it")
        if not any(Path(device).exists() for device in _DEVICES):
            looked = ", ".join(_DEVICES)
            raise NoAccelerator(
                f"no accelerator is on this machine (looked for {looked})", "`--allocator torch-host` needs none"
            )
        return cls(_ask_accelerator(torch.version))

    @cached_property
    def _torch(self) -> Any:
        import torch

        runtime: Any = torch.cuda
        if self.accelerator.startswith("cuda"):
            runtime.init()  # without it torch keeps no account of host memory, though it pins
        # The runtime starts at the first pinned request; its own memory must be there before anything is measured.
        torch.empty(1, dtype=torch.uint8, pin_memory=True)
        _empty_host_cache(torch)
        return torch

    def __getstate__(self) -> dict[str, object]:
        return {"accelerator": self.accelerator, "counter": self.counter}

    def notes(self) -> tuple[str, ...]:
        """Name the accelerator, which brings its runtime up."""
        version = self._torch.version
        runtime = f"CUDA {version.cuda}" if version.cuda else f"ROCm {version.hip}" if version.hip else "its runtime"
        return (f"pinned through {self.accelerator}, {runtime}",)

    def allocate(self, asked_bytes: int) -> PinnedTensor:
        """Ask torch for a pinned tensor of `asked_bytes`."""
        torch = self._torch
        try:
            return PinnedTensor(torch.empty(asked_bytes, dtype=torch.uint8, pin_memory=True))
        except RuntimeError as error:
            lines = str(error).strip().splitlines() or ["no reason given"]
            raise AllocationFailed(f"torch could not pin {asked_bytes:,} B: {lines[0][:200]}") from None

    def empty_cache(self) -> None:
        """Give the blocks that are kept and not in use back."""
        _empty_host_cache(self._torch)

    def allocated_bytes(self) -> int | None:
        """Return the bytes of all blocks by torch's own account, or None where this torch keeps none."""
        stats = getattr(self._torch.cuda, "host_memory_stats", None)
        if stats is None or not self.accelerator.startswith("cuda"):
            return None
        told = stats()
        # Up to torch 2.9 all blocks are reserved_bytes, and allocated_bytes those in use alone.
        account = told.get("reserved_bytes.current", told.get("allocated_bytes.current"))
        return None if account is None else int(account)


@cache  # seconds, and the answer of one process stays the same
def _ask_accelerator(version: str) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK], capture_output=True, text=True, check=False, timeout=_ASK_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise AllocatorUnavailable(
            f"torch did not answer within {_ASK_TIMEOUT_SECONDS} s", "see `nvidia-smi`"
        ) from None
    answer = (done.stdout.split() or ["none"])[-1]
    if done.returncode or answer == "none":
        last = (done.stderr.strip().splitlines() or ["it has no accelerator"])[-1][:160]
        raise AllocatorUnavailable(
            f"torch {version} can't use an accelerator here: {last}", "`--allocator torch-host` needs none"
        )
    return answer


def _empty_host_cache(torch: Any) -> None:
    public = getattr(torch.accelerator, "empty_host_cache", None)  # since 2.12
    if public is not None:
        public()
    else:
        torch._C._host_emptyCache()
