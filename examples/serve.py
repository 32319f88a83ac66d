"""Generates from a language model with a cache of keys and values, as a server does: prompts, then token by token.

The shape is Llama 3's of 8 billion parameters in bfloat16, with random weights: nothing is downloaded. The first
`--prompts` are read one after the other, which is timed; the cache has room for `--num-seqs`, and each token is
computed for all of them.

    windtunnel run --gpus A100 --no-data serve.py --num-seqs 32  # memory and times
    windtunnel plan serve.py --gpus L40S,A100,H100 --largest=--num-seqs=1..1024 --to-the-end  # how many fit
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    """Attention that keeps its keys and values, and a gated layer behind it; the cache is the caller's."""

    def __init__(self, hidden, heads, kv_heads, inner):
        super().__init__()
        self.heads, self.kv_heads, self.width = heads, kv_heads, hidden // heads
        self.norms = nn.ModuleList([nn.RMSNorm(hidden), nn.RMSNorm(hidden)])
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * self.width, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x, rows, cache, start):
        """`x` is [sequences, tokens, hidden]; `cache` is [2, all sequences, heads, tokens, width]."""
        tokens = x.shape[1]
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (-1, self.width)).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), 1)
        cache[0, rows, :, start : start + tokens] = k
        cache[1, rows, :, start : start + tokens] = v
        k, v = cache[:, rows, :, : start + tokens]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=tokens > 1, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embedding = nn.Embedding(args.vocabulary, args.hidden)
        layers = [Layer(args.hidden, args.heads, args.kv_heads, args.inner) for _ in range(args.layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(args.hidden)
        self.head = nn.Linear(args.hidden, args.vocabulary, bias=False)

    def forward(self, tokens, rows, caches, start):
        """The next token of each sequence."""
        x = self.embedding(tokens)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, rows, cache, start)
        return self.head(self.norm(x[:, -1:])).argmax(-1)


def waited(device):
    """The time, when all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    sizes = {"num-seqs": 8, "prompt": 1024, "new-tokens": 32, "max-tokens": 2048, "vocabulary": 128256, "hidden": 4096}
    sizes |= {"layers": 32, "heads": 32, "kv-heads": 8, "inner": 14336, "prompts": 4}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = Model(args)
        shape = (2, args.num_seqs, args.kv_heads, args.max_tokens, args.hidden // args.heads)
        caches = [torch.zeros(shape) for _ in range(args.layers)]
        prompts = torch.randint(args.vocabulary, (args.num_seqs, args.prompt))

    first = []
    last = prompts[:, -1:].clone()
    start = waited(device)
    for row in range(min(args.num_seqs, args.prompts)):
        rows = slice(row, row + 1)
        last[rows] = model(prompts[rows], rows, caches, 0)
        first.append(waited(device) - start)
        start += first[-1]
    steps = []
    for step in range(args.new_tokens - 1):
        last = model(last, slice(None), caches, args.prompt + step)
        steps.append(waited(device) - start)
        start += steps[-1]

    cache_bytes = sum(cache.nbytes for cache in caches)
    print(f"weights {sum(p.nbytes for p in model.parameters())} bytes, cache {cache_bytes} bytes")
    print(f"cache per token {cache_bytes // (args.num_seqs * args.max_tokens)} bytes")
    print(f"time to first token of one prompt {1e3 * sorted(first)[len(first) // 2]:.2f} ms")
    print(f"time per token of all sequences {1e3 * sorted(steps)[len(steps) // 2]:.2f} ms")
    if device.type == "cuda":
        print(f"peak {torch.cuda.max_memory_allocated()} bytes")


main()
