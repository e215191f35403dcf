"""The doubles of a device: streams, and fences that a test holds back."""

from __future__ import annotations

import threading
from typing import Any

import pytest


class FakeStream:
    """Stands for a device's stream where there is no device: torch then takes any object for one."""


def a_stream() -> Any:
    """A stream to stage on: the copies on it are complete at once, and their fences when they are let go."""
    torch = pytest.importorskip("torch")
    return torch.cuda.Stream() if torch.cuda.is_available() else FakeStream()


class HeldFence:
    """A double of a device's event: complete once it is let go. It can be asked, and hold a stream back, no more."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_let_go = False
        self.held_back: list[tuple[str, Any]] = []

    def is_done(self) -> bool:
        self.asked += 1
        return self.is_let_go

    def hold_back(self, stream: Any) -> None:
        self.held_back.append((threading.current_thread().name, stream))

    def wait(self) -> None:
        raise AssertionError("somebody waits for the fence")

    synchronize = wait


class HeldFences:
    """A ring's `fence_for`: holds the copies on streams back, or none, and remembers the fences in order."""

    def __init__(self) -> None:
        self.made: list[HeldFence] = []
        self.are_held = True

    def __call__(self, stream: Any) -> HeldFence:
        fence = HeldFence()
        fence.is_let_go = stream is None or not self.are_held
        self.made.append(fence)
        return fence

    def let_go(self) -> None:
        for fence in self.made:
            fence.is_let_go = True
