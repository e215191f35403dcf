"""A hybrid model's state goes through ring and pool and back into a cache, and the model never notices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pinprobe.ledger.ledger import HostPinnedLedger
from pinprobe.ledger.tenants.copy_out import CopyOut
from pinprobe.ledger.tenants.hf_cache import crop_attention, recurrent_state, restore_into
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout
from pinprobe.ledger.tenants.savepoint_ring import SavepointRing
from pinprobe.probes.allocators.pageable import Pageable
from pinprobe.probes.errors import BadRequest
from tests.ledger.tenants.hybrid_models import FAMILIES, TOKENS, cache_of, copies, filled, model, prompts, run, same

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.24")
layers = pytest.importorskip("transformers.cache_utils")

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _in_one_order() -> Iterator[None]:
    """One thread adds in one order, however busy the machine is."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


@contextmanager
def through_ring_and_pool(
    states: Sequence[Mapping[str, Any]], tokens: Any, split: int
) -> Iterator[Callable[[int], dict[str, Any]]]:
    """Stage and keep the states of a prompt's first part, one for each row; yield what finds a row's by its prompt."""
    layout = SavepointLayout.of_tensors(states[0])
    with HostPinnedLedger() as ledger:
        ring = SavepointRing(ledger, layout, len(states), Pageable())
        pool = RetentionPool(ledger, layout, bound_regions=len(states), chunk_tokens=1)
        copy_out = CopyOut(ring, pool)
        for row, state in enumerate(states):
            copy_out.submit(ring.stage(state), tokens[row, :split].tolist(), f"conversation {row}")
        copy_out.close(drain_seconds=60)
        assert pool.stats().promoted == len(states)
        # What is restored must come from the pool's own memory.
        for state in states:
            for tensor in state.values():
                tensor.fill_(float("nan"))

        def find(row: int) -> dict[str, Any]:
            hold = pool.match(tokens[row].tolist())
            assert hold is not None
            assert hold.tokens == split
            return hold.views()

        yield find


# -- the same bits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("split", [1, 2, 33, 64, 89])
@pytest.mark.parametrize("family", FAMILIES)
def test_from_a_savepoint_a_model_goes_on_bit_for_bit_as_from_its_own_cache(
    family: str, split: int, dtype: str
) -> None:
    # The splits: shorter than a convolution, within a chunk of the recurrence and at its end, and a single last token.
    net, tokens = model(family, dtype), prompts(2)
    _, cache = run(net, tokens[:, :split])
    staged = [copies(recurrent_state(cache, row)) for row in range(2)]
    expected, cache = run(net, tokens[:, split:], cache)
    with through_ring_and_pool(staged, tokens, split) as find:
        restored = crop_attention(cache, split)
        for row in (1, 0):
            restore_into(restored, row, find(row), rows=2)
    logits, restored = run(net, tokens[:, split:], restored)
    assert torch.equal(logits, expected)
    assert not torch.isnan(expected).any()
    # What both go on to keep is the same too, and so is what they say next, token by token.
    for _ in range(3):
        following = expected[:, -1:].argmax(-1)
        (expected, cache), (logits, restored) = run(net, following, cache), run(net, following, restored)
        assert torch.equal(logits, expected)


@pytest.mark.parametrize("attribute", ["conv_states", "recurrent_states", "nothing"])
def test_a_state_of_another_conversation_is_noticed(attribute: str) -> None:
    tokens = prompts()
    _, cache = run(model(), tokens[:, :40])
    state = copies(recurrent_state(cache))
    other = recurrent_state(filled(40, seed=1))
    expected, cache = run(model(), tokens[:, 40:], cache)
    restored = crop_attention(cache, 40)
    assert not torch.equal(run(model(), tokens[:, 40:], crop_attention(cache, 40))[0], expected)
    restore_into(restored, 0, {**state, **{name: other[name] for name in state if name.endswith(attribute)}})
    assert torch.equal(run(model(), tokens[:, 40:], restored)[0], expected) == (attribute == "nothing")


# -- what is saved


def test_the_state_of_a_row_is_named_by_layer_and_lies_in_the_cache_itself() -> None:
    cache = filled(rows=3)
    state = recurrent_state(cache, 2)
    assert list(state) == [f"layers.{layer}.{name}_states" for layer in range(3) for name in ("conv", "recurrent")]
    for layer in range(3):
        whole = cache.layers[layer].recurrent_states[0]
        view = state[f"layers.{layer}.recurrent_states"]
        assert view.data_ptr() == whole.data_ptr() + 2 * view.nbytes
        assert torch.equal(view, whole[2])


def test_several_states_of_a_layer_have_numbers() -> None:
    cache, fresh = (cache_of(layers.LinearAttentionLayer(number_of_states=2)) for _ in range(2))
    for number in range(2):
        cache.update_conv_state(torch.full((1, 4, 3), float(number)), 0, number)
    cache.update_recurrent_state(torch.ones(1, 2, 2), 0, 1)
    state = recurrent_state(cache)
    assert list(state) == ["layers.0.conv_states.0", "layers.0.conv_states.1", "layers.0.recurrent_states.1"]
    restore_into(fresh, 0, state)
    assert same(recurrent_state(fresh), state)


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_is_not_in_the_cache_is_refused(row: int) -> None:
    cache = filled(rows=2)
    state = recurrent_state(cache, 1)
    for act in (lambda: recurrent_state(cache, row), lambda: restore_into(cache, row, state)):
        with pytest.raises(BadRequest, match=f"no row {row} in a cache of 2"):
            act()


def test_a_cache_without_a_state_is_told_from_one_that_needs_no_savepoint() -> None:
    with pytest.raises(BadRequest, match="layer 0 has seen no token yet"):
        recurrent_state(transformers.DynamicCache(config=model().config))
    cache = cache_of(layers.DynamicLayer())
    for act in (lambda: recurrent_state(cache), lambda: restore_into(cache, 0, {})):
        with pytest.raises(BadRequest, match=r"none of the cache's 1 layers is recurrent \(DynamicLayer\)"):
            act()


TWO_CACHES = transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())


@pytest.mark.parametrize(
    "thing", [None, SimpleNamespace(layers=[]), TWO_CACHES], ids=lambda thing: type(thing).__name__
)
def test_what_is_no_cache_is_refused(thing: Any) -> None:
    for act in (recurrent_state, lambda it: restore_into(it, 0, {}), lambda it: crop_attention(it, 1)):
        with pytest.raises(BadRequest, match=f"a {type(thing).__name__} "):
            act(thing)


def test_a_layer_that_keeps_more_than_the_last_state_is_refused() -> None:
    cache = transformers.DynamicCache(config=model().config)
    cache.activate_past_recording()
    run(model(), prompts(tokens=20), cache)
    with pytest.raises(BadRequest, match="layer 0 records its past"):
        recurrent_state(cache)
    cache.crop(0)
    assert same(recurrent_state(cache), recurrent_state(filled()))


# -- what is restored


def test_only_the_row_that_is_restored_changes() -> None:
    cache, other = filled(rows=3), recurrent_state(filled(seed=1))
    before = [copies(recurrent_state(cache, row)) for row in range(3)]
    restore_into(cache, 1, other)
    for row, expected in enumerate([before[0], other, before[2]]):
        assert same(recurrent_state(cache, row), expected)


def test_the_rows_beside_the_restored_one_of_a_fresh_cache_are_zeros() -> None:
    fresh = crop_attention(filled(rows=2), 20)
    restore_into(fresh, 1, recurrent_state(filled()))
    assert not any(tensor.any() for tensor in recurrent_state(fresh, 0).values())


def test_a_cache_that_was_reset_is_restored() -> None:
    tokens, cache = prompts(), filled(40)
    state = copies(recurrent_state(cache))
    cropped = crop_attention(cache, 40)
    expected, _ = run(model(), tokens[:, :3], cache)
    cache.reset()
    cache.layers[3] = cropped.layers[3]
    restore_into(cache, 0, state)
    assert torch.equal(run(model(), tokens[:, :3], cache)[0], expected)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.enable_grad], ids=["inference", "gradients"])
def test_a_model_in_any_mode_goes_on_from_what_was_restored_outside_of_it(mode: Callable[[], Any]) -> None:
    tokens = prompts()
    with mode():
        _, cache = run(model(), tokens[:, :40])
    state = copies(recurrent_state(cache))
    fresh, used = (crop_attention(cache, 40) for _ in range(2))
    with mode():
        expected, _ = run(model(), tokens[:, 40:], cache)
    used.layers[:3] = cache.layers[:3]
    for restored in (fresh, used):
        restore_into(restored, 0, state)
        with mode():
            assert torch.equal(run(model(), tokens[:, 40:], restored)[0], expected)


def test_what_was_cropped_holds_no_graph_of_the_model_that_made_it() -> None:
    with torch.enable_grad():
        cache = filled()
        assert cache.layers[3].keys.requires_grad
        fresh = crop_attention(cache, 10)
        restore_into(fresh, 0, recurrent_state(cache))
    tensors = (fresh.layers[3].keys, fresh.layers[3].values, *recurrent_state(fresh).values())
    assert not any(tensor.requires_grad for tensor in tensors)


def test_rows_and_device_are_those_of_what_is_filled_else_those_that_are_given() -> None:
    def made(cache: Any) -> set[tuple[str, int]]:
        states = [layer.conv_states[0] for layer in cache.layers[:3]]
        states += [layer.recurrent_states[0] for layer in cache.layers[:3]]
        return {(state.device.type, len(state)) for state in states}

    state = recurrent_state(filled(rows=2), 1)
    fresh = transformers.DynamicCache(config=model().config)
    with pytest.raises(BadRequest, match="no row 2 in a cache of 1"):
        restore_into(fresh, 2, state)
    restore_into(fresh, 2, state, rows=3, device="meta")
    assert made(fresh) == {("meta", 3)}
    with pytest.raises(BadRequest, match="no row 3 in a cache of 3"):
        restore_into(fresh, 3, state, rows=4)  # by now the cache itself tells
    fresh = crop_attention(filled(rows=2), 20)
    fresh.layers[3].keys = fresh.layers[3].keys.to("meta")
    restore_into(fresh, 1, state)
    assert made(fresh) == {("meta", 2)}


@pytest.mark.parametrize(
    ("name", "given", "because"),
    [
        ("layers.1.conv_states", None, r"layers.1.conv_states is missing among the 5 tensors"),
        ("layers.0.recurrent_states", None, r"layers.0.recurrent_states is missing among the 5 tensors"),
        ("layers.3.conv_states", (4, 4), r"layers.3.conv_states is no state of the cache"),
        ("layers.2.recurrent_states", (4, 8, 9), r"is \(4, 8, 8\) of torch.float32 in the cache, not \(4, 8, 9\) of"),
        ("layers.0.recurrent_states", (4, 8, 8), r"is \(4, 8, 8\) of torch.float32 in the cache, not .* torch.float64"),
    ],
)
def test_tensors_that_are_not_the_caches_are_refused_and_nothing_is_changed(
    name: str, given: tuple[int, ...] | None, because: str
) -> None:
    cache = filled()
    before = copies(recurrent_state(cache))
    tensors = {other: torch.zeros_like(tensor) for other, tensor in before.items()}
    if given is None:
        del tensors[name]
    else:
        tensors[name] = torch.zeros(given, dtype=torch.float64 if given == (4, 8, 8) else torch.float32)
    with pytest.raises(BadRequest, match=because) as refused:
        restore_into(cache, 0, tensors)
    assert len(str(refused.value).splitlines()) == 1
    assert same(recurrent_state(cache), before)


def test_a_savepoint_without_a_convolution_of_a_layer_is_refused_by_a_fresh_cache_too() -> None:
    state = recurrent_state(filled())
    del state["layers.1.conv_states"]
    fresh = transformers.DynamicCache(config=model().config)
    with pytest.raises(BadRequest, match=r"layers\.1\.conv_states is missing"):
        restore_into(fresh, 0, state)
    assert not any(any(layer.has_previous_state.values()) for layer in fresh.layers[:3])


# -- what attention keeps


def test_what_is_cropped_is_a_copy_and_the_live_cache_stays_as_it_was() -> None:
    live = filled(30, rows=2)
    keys, values = live.layers[3].keys.clone(), live.layers[3].values.clone()
    fresh = crop_attention(live, 12)
    assert torch.equal(fresh.layers[3].keys, keys[:, :, :12])
    assert torch.equal(fresh.layers[3].values, values[:, :, :12])
    assert fresh.get_seq_length() == 12
    assert [layer.recurrent_states[0] for layer in fresh.layers[:3]] == [None] * 3
    fresh.layers[3].keys.zero_()
    fresh.layers[3].values.zero_()
    assert torch.equal(live.layers[3].keys, keys)
    assert torch.equal(live.layers[3].values, values)


def sliding(tokens: int, records_past: bool = False) -> Any:
    """A cache with a window of 8 tokens that saw so many; the keys of token n are n."""
    layer = layers.DynamicSlidingWindowLayer(sliding_window=8)
    layer.record_past = records_past
    cache = cache_of(layer)
    states = torch.arange(float(tokens)).reshape(1, 1, tokens, 1)
    cache.update(states, -states, 0)
    return cache


@pytest.mark.parametrize(
    ("seen", "tokens", "records_past"), [(7, 5, False), (7, 7, False), (12, 12, False), (12, 9, True), (12, 3, True)]
)
def test_a_sliding_window_is_cropped_to_what_it_was_at_that_token(seen: int, tokens: int, records_past: bool) -> None:
    (cropped,) = crop_attention(sliding(seen, records_past), tokens).layers
    (then,) = sliding(tokens).layers
    assert cropped.keys.tolist() == then.keys.tolist()
    assert cropped.values.tolist() == then.values.tolist()
    assert cropped.get_seq_length() == tokens
    assert cropped.get_mask_sizes(4) == then.get_mask_sizes(4)


@pytest.mark.parametrize(
    ("cache", "tokens", "because"),
    [
        (filled, -1, "layer 3 has seen 20 tokens: it can't be cropped to -1"),
        (filled, 0, "layer 3 has seen 20 tokens: it can't be cropped to 0"),
        (filled, 21, "layer 3 has seen 20 tokens: it can't be cropped to 21"),
        (lambda: sliding(12), 11, "DynamicSlidingWindowLayer of 8 tokens at 12: those before 5 are gone"),
        (lambda: cache_of(layers.DynamicIndexedLayer()), 1, "layer 0 is a DynamicIndexedLayer, which can't be"),
        (lambda: transformers.StaticCache(model().config, 50), 1, "a StaticCache can't be cropped here"),
    ],
)
def test_what_can_not_be_cropped_is_refused(cache: Callable[[], Any], tokens: int, because: str) -> None:
    with pytest.raises(BadRequest, match=because):
        crop_attention(cache(), tokens)


def test_a_cache_of_fixed_size_is_restored_too() -> None:
    static = transformers.StaticCache(model().config, TOKENS)
    run(model(), prompts(tokens=40), static)
    other = recurrent_state(filled(40, seed=1))
    restore_into(static, 0, other)
    assert same(recurrent_state(static), other)


def test_without_a_transformers_of_such_caches_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = filled()
    monkeypatch.delattr(layers, "LinearAttentionCacheLayerMixin")  # as in an older one
    with pytest.raises(BadRequest, match="pip install 'transformers>="):
        recurrent_state(cache)
    monkeypatch.setitem(sys.modules, "transformers", None)  # as where there is none
    with pytest.raises(BadRequest, match="pip install 'transformers>="):
        recurrent_state(cache)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_example_spares_half_of_a_prefill_and_gives_the_same_bits(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no accelerator")
    paths = [str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/hybrid_model.py"), "--device", device],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("bit-identical: True\n")
    assert "prefill tokens spared: 1,024 of 2,048;" in done.stdout
    assert "promoted 1 =" in done.stdout
