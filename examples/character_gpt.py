"""Train a two-layer character-level GPT on a text file, by default this repository's licence, then write some text.

windtunnel run examples/character_gpt.py --steps 60
"""

import argparse
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

LICENCE = Path(__file__).parent.parent / "LICENSE"


class Block(nn.Module):
    """One transformer layer: causal self-attention and a two-layer network, each behind a layer norm."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        """Map (batch, time, width) to the same shape."""
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.network(self.norm2(x))


class GPT(nn.Module):
    """Predicts the next character from the `context` characters before it."""

    def __init__(self, characters, context, width=64, heads=4, layers=2):
        super().__init__()
        self.context = context
        self.token, self.position = nn.Embedding(characters, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, tokens):
        """Map character numbers (batch, time) to logits (batch, time, characters)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.position(positions))))

    @torch.no_grad()
    def write(self, tokens, length):
        """Continue `tokens` (1, time) by `length` sampled characters, without waiting for the device in between."""
        for _ in range(length):
            logits = self(tokens[:, -self.context :])[:, -1]
            # Of exponential arrival times, the first is that of a character with its probability: a draw on the device.
            arrivals = torch.empty_like(logits).exponential_().log() - logits
            tokens = torch.cat([tokens, arrivals.argmin(dim=-1, keepdim=True)], dim=1)
        return tokens


def batches(text, count, size, context):
    """Yield `count` batches: inputs and targets (size, context) on the text's device, drawn at random."""
    offsets = torch.arange(context, device=text.device)
    for _ in range(count):
        starts = torch.randint(len(text) - context, (size, 1), device=text.device)
        yield text[starts + offsets], text[starts + offsets + 1]


def main():
    """Read, train, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disable-cuda", action="store_true", help="train on the CPU")
    parser.add_argument("--text", type=Path, default=LICENCE, help="the file to learn from")
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() and not args.disable_cuda else "cpu")
    torch.manual_seed(0)

    text = args.text.read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    numbers = {character: number for number, character in enumerate(alphabet)}
    tokens = torch.tensor([numbers[character] for character in text], device=device)

    model = GPT(len(alphabet), context=64).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = torch.zeros(args.steps, device=device)  # the log stays on the device: one transfer at the end
    for step, (inputs, targets) in enumerate(batches(tokens, args.steps, 16, model.context)):
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step] = loss.detach()
    log = losses.tolist()
    print(f"loss per character: {log[0]:.3f} at first, {log[-1]:.3f} after {args.steps} steps")
    written = model.write(tokens[None, :16], 80)[0].tolist()
    print("".join(alphabet[number] for number in written))


if __name__ == "__main__":
    main()
