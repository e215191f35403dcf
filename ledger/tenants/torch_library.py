"""Loads torch without its remark on numpy, which nothing here needs: stderr is for what a user can act on."""

from __future__ import annotations

import warnings
from typing import Any


def load_torch() -> Any:
    """Import torch and return it. Raises `ImportError`, and whatever a broken installation raises."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
        import torch
    return torch
