"""A GPT of 124 million parameters on random tokens, written for one GPU: what `windtunnel plan` is shown with.

windtunnel plan examples/gpt.py --gpus T4,L4,RTX4090,A100,H100 --largest=--batch-size
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

TOKENS, LENGTH, WIDTH, HEADS, LAYERS = 50304, 1024, 768, 12, 12


class Block(nn.Module):
    """Attention and two linear layers, each on what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        heads = [part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, 2)]
        x = x + self.out(scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Tokens (batch, length) to the logits of the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) to (batch, length, tokens)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))


def main() -> None:
    """Train on random tokens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args()
    model = Gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    for step in range(options.steps):
        text = torch.randint(TOKENS, (options.batch_size, LENGTH + 1)).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(text[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1).float(), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
