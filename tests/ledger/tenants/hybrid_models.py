"""Small models of random weights whose caches hold recurrent states, and what runs them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.24")

TOKENS = 90
_ALL = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4}
_ATTENTION = {"num_attention_heads": 2, "num_key_value_heads": 1}
#: Models whose caches differ: in which layers they have, in how many, and in what these keep.
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen3Next": {
        **_ATTENTION, "head_dim": 16, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    # Each layer has attention and a recurrence side by side.
    "FalconH1": {
        **_ATTENTION, "head_dim": 16, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8,
        "mamba_chunk_size": 16,
    },
    # Convolutions and no recurrence.
    "Lfm2": {**_ATTENTION, "layer_types": ["conv", "full_attention", "conv", "conv"]},
    # No attention, so that nothing tells how many rows a fresh cache is to have.
    "Mamba": {"state_size": 8},
}  # fmt: skip


@lru_cache
def model(family: str = "Qwen3Next", dtype: str = "float32") -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**_ALL, **FAMILIES[family])
    return getattr(transformers, f"{family}ForCausalLM")(config).to(getattr(torch, dtype)).eval()


def prompts(count: int = 1, tokens: int = TOKENS, seed: int = 0) -> Any:
    return torch.randint(128, (count, tokens), generator=torch.Generator().manual_seed(seed))


def run(net: Any, tokens: Any, cache: Any = None) -> tuple[Any, Any]:
    """Return the logits and the cache, which is changed where it was given."""
    cache = transformers.DynamicCache(config=net.config) if cache is None else cache
    return net(tokens, cache=cache, use_cache=True).logits, cache


def filled(tokens: int = 20, rows: int = 1, seed: int = 0) -> Any:
    return run(model(), prompts(rows, tokens, seed))[1]


def copies(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in state.items()}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def cache_of(layer: Any) -> Any:
    cache = transformers.DynamicCache()
    cache.layers = [layer]
    return cache
