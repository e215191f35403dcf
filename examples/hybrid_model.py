"""A hybrid model goes on from a savepoint, bit for bit as if it had never stopped.

It needs torch and transformers: `pip install '.[hf]'` in a checkout of pinprobe. The model is a small Qwen3-Next of
random weights; nothing is downloaded. The first half of a prompt is prefilled, its state staged in a ring and kept in a
pool, and the second half run twice: from the model's own cache, and from the savepoint.
"""

import argparse
import os
import sys
import time
from typing import Any

try:
    import torch
    import transformers
except ImportError as error:
    sys.exit(f"{error}: this example needs torch and transformers; in a checkout of pinprobe: pip install '.[hf]'")

from pinprobe import HostPinnedLedger
from pinprobe.ledger.tenants.copy_out import CopyOut
from pinprobe.ledger.tenants.hf_cache import crop_attention, recurrent_state, restore_into
from pinprobe.ledger.tenants.retention_pool import RetentionPool
from pinprobe.ledger.tenants.savepoint_layout import SavepointLayout
from pinprobe.ledger.tenants.savepoint_ring import SavepointRing
from pinprobe.probes.allocators.registry import prepare_allocator

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
parser.add_argument("--layers", type=int, default=8, help="4 or more: every fourth is an attention layer")
parser.add_argument("--hidden", type=int, default=256, help="a multiple of 128")
parser.add_argument("--tokens", type=int, default=2048, help="of the whole prompt, 2 or more")
options = parser.parse_args()
if options.layers < 4 or options.hidden < 128 or options.hidden % 128 or options.tokens < 2:
    parser.error("give --layers, --hidden and --tokens as --help says")
# Equal bits need sums that are added in one order. On a GPU that has to be asked for; on a CPU the count of threads
# decides, and a library of matrices may take fewer of them while the machine is busy: one thread is always one.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
torch.use_deterministic_algorithms(True, warn_only=True)
torch.set_num_threads(1)
torch.set_grad_enabled(False)
torch.manual_seed(0)
heads, half = options.hidden // 64, options.tokens // 2
model = transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(
    vocab_size=4096, hidden_size=options.hidden, num_hidden_layers=options.layers, num_attention_heads=heads,
    num_key_value_heads=heads // 2, head_dim=64, linear_key_head_dim=64, linear_value_head_dim=64, num_experts=8,
    linear_num_key_heads=heads // 2, linear_num_value_heads=heads, num_experts_per_tok=2,
)).to(options.device).eval()  # fmt: skip
prompt = torch.randint(4096, (1, options.tokens)).to(options.device)


def prefill(tokens: torch.Tensor, cache: transformers.Cache | None = None) -> tuple[torch.Tensor, Any, float]:
    """Run the model; return its logits, in this processor's memory, its cache, and the seconds that it took."""
    began = time.perf_counter()
    done = model(tokens, cache=cache)
    return done.logits.cpu(), done.cache, time.perf_counter() - began


at_once, _, _ = prefill(prompt)  # which loads what is loaded once, too
_, cache, first_seconds = prefill(prompt[:, :half])
layout = SavepointLayout.of_tensors(recurrent_state(cache))
allocator = prepare_allocator("auto", 2 * layout.row_bytes).allocator
allocator.notes()  # brings its library up before the ledger looks
with HostPinnedLedger(keep_free_bytes=2**28) as ledger:
    ring = SavepointRing(ledger, layout, 2, allocator)
    pool = RetentionPool(ledger, layout, bound_regions=4, chunk_tokens=min(half, 256))
    copy_out = CopyOut(ring, pool)
    ticket = ring.stage(recurrent_state(cache), torch.cuda.current_stream() if prompt.is_cuda else None)
    copy_out.submit(ticket, prompt[0, :half].tolist(), "conversation 1")
    expected, cache, second_seconds = prefill(prompt[:, half:], cache)
    copy_out.close(drain_seconds=60)
    began = time.perf_counter()
    with pool.match(prompt[0].tolist()) or sys.exit(f"the savepoint was not kept: {pool.stats().line()}") as hold:
        restored = crop_attention(cache, hold.tokens)  # the keys and values as a prefix cache would give them
        restore_into(restored, 0, hold.views())
    restore_seconds = time.perf_counter() - began
    resumed, _, resumed_seconds = prefill(prompt[:, hold.tokens :], restored)
    print(f"{ring.describe()}\npool: {pool.stats().line()}")
print(f"prefill tokens spared: {hold.tokens:,} of {options.tokens:,}; matched and restored in {restore_seconds:.4f} s")
print(f"seconds of both halves: {first_seconds + second_seconds:.3f}; of the half that is left: {resumed_seconds:.3f}")
print(f"logits of both halves in one step: apart by up to {(at_once[:, half:] - expected).abs().max():.1e}")
print(f"bit-identical: {torch.equal(expected, resumed)}")
sys.exit(not torch.equal(expected, resumed))
