"""The part of NVIDIA's driver that page-locks memory somebody else mapped.

libcuda comes with the driver itself, so it is there wherever a GPU can be used, whatever CUDA runtime torch brings
along or none. It also keeps no "last error": a refused registration through the runtime library stays in
cudaGetLastError and surfaces later, in code that has nothing to do with it; the driver answers each call and remembers
nothing.
"""

from __future__ import annotations

import ctypes
from functools import cached_property

from pinprobe.probes.errors import AllocationFailed, AllocatorUnavailable

_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: page-locked for every context of the process, torch's included
_LIBRARY = "libcuda.so.1"


class CudaDriver:
    """The driver, with the primary context of one device made current on this thread.

    Torch uses the primary context too, so that both see the same registrations.
    """

    def __init__(self, device_index: int = 0) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise AllocatorUnavailable(
                f"no NVIDIA driver was found (looked for {_LIBRARY} where the linker looks: {error})",
                "registered memory needs a machine with an NVIDIA GPU",
            ) from None
        self._must_have("cuInit", ctypes.c_uint(0))
        device = ctypes.c_int()
        self._must_have("cuDeviceGet", ctypes.byref(device), ctypes.c_int(device_index))
        context = ctypes.c_void_p()
        self._must_have("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._context = context
        self.use_here()

    @cached_property
    def version(self) -> str:
        """The CUDA version that the driver supports, as `13.0`."""
        number = ctypes.c_int()
        self._must_have("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def use_here(self) -> None:
        """Make the context current on the calling thread, which every thread has to do for itself."""
        self._must_have("cuCtxSetCurrent", self._context)

    def register(self, address: int, size_bytes: int) -> None:
        """Page-lock memory that is mapped already. Raises `AllocationFailed` with the driver's own word."""
        code = self._library.cuMemHostRegister_v2(
            ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), ctypes.c_uint(_PORTABLE)
        )
        if code:
            raise AllocationFailed(f"registering {size_bytes:,} B with the driver failed: {self._name(code)}")

    def unregister(self, address: int) -> None:
        """Let go of a registration that begins at `address`."""
        code = self._library.cuMemHostUnregister(ctypes.c_void_p(address))
        if code:
            raise AllocationFailed(f"unregistering {address:#x} failed: {self._name(code)}")

    def _must_have(self, call: str, *arguments: object) -> None:
        code = getattr(self._library, call)(*arguments)
        if code:
            raise AllocatorUnavailable(
                f"the NVIDIA driver can't be used: {call} says {self._name(code)}", "`nvidia-smi` shows what is wrong"
            )

    def _name(self, code: int) -> str:
        name = ctypes.c_char_p()
        if self._library.cuGetErrorName(code, ctypes.byref(name)) or name.value is None:
            return f"error {code}"
        return f"{name.value.decode(errors='replace')} ({code})"
