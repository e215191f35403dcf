"""Savepoints of a Hugging Face model: the recurrent state in its cache as tensors by name, and the way back.

The keys and values of a prefix are the first part of those of the whole, so that an engine's prefix cache can cut them.
A recurrent layer overwrites its state with every token and can't be cut: that state is what a savepoint keeps.

Covers: caches whose layers are transformers' own, as 5.24 makes them. Does not cover: caches that a model brings along,
such as MiniMax's, and those of a transformers so old that its caches have no recurrent layers; both are refused.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pinprobe.probes.errors import BadRequest, printable

if TYPE_CHECKING:
    import torch
    from transformers.cache_utils import Cache

# Others keep more than keys and values, or keep these in another form.
_CROPPED = (
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
    "DummyLayer",
)


@dataclass(frozen=True)
class _Place:
    """One of the states that a recurrent layer keeps: of a convolution, or of the recurrence itself."""

    index: int
    layer: Any
    attribute: str
    number: int

    @property
    def name(self) -> str:
        name = f"layers.{self.index}.{self.attribute}"
        return f"{name}.{self.number}" if self.layer.number_of_states > 1 else name

    @property
    def is_of_convolution(self) -> bool:
        return self.attribute == "conv_states"

    @property
    def states(self) -> Any:
        """The tensor of all rows, or None where no token was seen, or where the model has no such state."""
        return getattr(self.layer, self.attribute)[self.number]


def recurrent_state(cache: Cache, row: int = 0) -> dict[str, torch.Tensor]:
    """Return the recurrent state of one sequence: `layers.3.conv_states`, `layers.3.recurrent_states` and so on.

    They are views of the row, without the batch dimension; where a layer keeps several states, their number is the last
    part of the name. The model's next step overwrites them: stage them before it, and on a device by the stream that
    it computes on.

    Raises `BadRequest` where the cache has no recurrent layer, or one that has seen no token, and for a row that is not
    in it.
    """
    state = {}
    for place in _places(cache):
        if not place.layer.has_previous_state[place.number]:
            raise BadRequest(f"layer {place.index} has seen no token yet: save its state after a prefill")
        if place.states is not None:
            _check_row(row, len(place.states))
            state[place.name] = place.states[row]
    return state


def restore_into(
    cache: Cache,
    row: int,
    tensors: Mapping[str, torch.Tensor],
    *,
    rows: int | None = None,
    device: torch.device | str | None = None,
) -> None:
    """Put what `recurrent_state` gave for one sequence into a row of a cache; its other rows stay as they are.

    Recurrent layers that hold nothing yet are made as the model makes them, and their other rows are zeros, as at a
    sequence's start. Their count of rows and their device are those of the layers that are filled, attention layers
    too; where none is, `rows` and `device`, or one row on the device of the tensors. The tensors have been read when
    this returns.

    Raises `BadRequest`, and has changed nothing, where the tensors are not the states of this cache. Layers that hold
    nothing yet don't know their shapes, nor whether they keep more than the state of a convolution: give all tensors of
    one savepoint.
    """
    import torch

    places = {place.name: place for place in _places(cache)}
    _check_tensors(places, tensors)
    filled = [place.states for place in places.values() if place.states is not None]
    filled += [layer.keys for layer in cache.layers if _holds_attention(layer)]
    row_count = len(filled[0]) if filled else 1 if rows is None else rows
    _check_row(row, row_count)
    for name, tensor in tensors.items():
        place = places[name]
        if place.states is None:
            on = filled[0].device if filled else device or tensor.device
            start = torch.zeros((row_count, *tensor.shape), dtype=tensor.dtype, device=on)
            update = cache.update_conv_state if place.is_of_convolution else cache.update_recurrent_state
            update(start, place.index, place.number)
        place.layer.has_previous_state[place.number] = True
        # Outside of inference mode nothing may write into the states of a model that ran in it; inside, into all.
        with torch.inference_mode():
            place.states[row].copy_(tensor)


def crop_attention(cache: Cache, tokens: int) -> Cache:
    """Return a fresh cache with copies of the keys and values of the first `tokens`, as a prefix cache would give them.

    Its recurrent layers hold nothing: `restore_into` fills them. Raises `BadRequest` where the cache is no
    `DynamicCache`, has seen fewer tokens, or has a sliding window that no longer holds what precedes that place.
    """
    import torch

    if type(cache) is not _transformers().DynamicCache:
        raise BadRequest(f"a {type(cache).__name__} can't be cropped here: a DynamicCache can")
    fresh = copy.copy(cache)
    with torch.no_grad():
        fresh.layers = [_cropped(index, layer, tokens) for index, layer in enumerate(cache.layers)]
    return fresh


def _cropped(index: int, layer: Any, tokens: int) -> Any:
    name = type(layer).__name__
    if name not in _CROPPED:
        raise BadRequest(f"layer {index} is a {name}, which can't be cropped here")
    window = getattr(layer, "sliding_window", None)
    fresh = type(layer)(number_of_states=getattr(layer, "number_of_states", 1), sliding_window=window)
    if not _holds_attention(layer):
        return fresh
    seen = layer.get_seq_length()
    if not 0 < tokens <= seen:
        raise BadRequest(f"layer {index} has seen {seen:,} tokens: it can't be cropped to {tokens:,}")
    first_held = seen - layer.keys.shape[-2]
    first = 0 if window is None else max(0, tokens - window + 1)
    if first < first_held:
        raise BadRequest(
            f"layer {index} is a {name} of {window:,} tokens at {seen:,}: those before {first_held:,} are gone,"
            f" so it can't be cropped to {tokens:,}; copy the keys and values when the savepoint is made"
        )
    cut = slice(first - first_held, tokens - first_held)
    fresh.update(layer.keys[..., cut, :], layer.values[..., cut, :])
    if window is not None:
        fresh.cumulative_length = tokens
    return fresh


def _transformers() -> Any:
    """Return the module of transformers' caches. Raises `BadRequest` where there is none that has recurrent layers."""
    try:
        from transformers import cache_utils
    except ImportError:
        cache_utils = None
    recurrent = getattr(cache_utils, "LinearAttentionCacheLayerMixin", object)
    # Caches of 5.0 had no recurrent layers, and those of the next versions one state a layer.
    if "number_of_states" not in inspect.signature(recurrent).parameters:
        raise BadRequest("the states of a model's cache need a later transformers: pip install 'transformers>=5.24'")
    return cache_utils


def _places(cache: Cache) -> list[_Place]:
    """Return every state that the cache's recurrent layers keep, or would keep, in the order of the layers."""
    known = _transformers()
    layers = getattr(cache, "layers", None)
    if not isinstance(cache, known.Cache) or not isinstance(layers, list):
        raise BadRequest(f"a {type(cache).__name__} is no cache with layers of transformers' own: give a DynamicCache")
    found = [
        _Place(index, layer, attribute, number)
        for index, layer in enumerate(layers)
        if isinstance(layer, known.LinearAttentionCacheLayerMixin)
        for number in range(layer.number_of_states)
        for attribute in ("conv_states", "recurrent_states")
    ]
    if not found:
        kinds = ", ".join(sorted({type(layer).__name__ for layer in layers}))
        raise BadRequest(f"none of the cache's {len(layers)} layers is recurrent ({kinds}): it needs no savepoint")
    for place in found:
        width = place.layer.conv_kernel_size[place.number]
        if place.is_of_convolution and place.states is not None and place.states.shape[-1] != width:
            raise BadRequest(f"layer {place.index} records its past, beyond the state of one token: crop(0) ends that")
    return found


def _check_tensors(places: Mapping[str, _Place], tensors: Mapping[str, torch.Tensor]) -> None:
    for name in tensors:
        if name not in places:
            raise BadRequest(f"{printable(name)} is no state of the cache's recurrent layers")
    for name, place in places.items():
        states = place.states
        if name not in tensors:
            if place.is_of_convolution or states is not None:
                raise BadRequest(f"{name} is missing among the {len(tensors)} tensors of the savepoint")
        elif states is not None and (tensors[name].shape, tensors[name].dtype) != (states.shape[1:], states.dtype):
            have = f"{tuple(tensors[name].shape)} of {tensors[name].dtype}"
            raise BadRequest(f"{name} is {tuple(states.shape[1:])} of {states.dtype} in the cache, not {have}")


def _check_row(row: int, row_count: int) -> None:
    if not 0 <= row < row_count:
        raise BadRequest(f"there is no row {row} in a cache of {row_count}, counted from 0")


def _holds_attention(layer: Any) -> bool:
    return getattr(layer, "keys", None) is not None and layer.keys.numel() > 0
