"""Well-known models on stock torch, for `training`: only their shapes matter, so they run without data.

Written from the papers and from what the published runs' logs say of their configurations; attention is spelled out
(products and softmax), as it was in those runs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """ResNet v1.5's block: the stride is in the 3x3 convolution."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.down = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += self.down(x)
        return self.relu(y)


class ResNet50(nn.Module):
    """Images (N, 3, 224, 224) to class scores (N, 1000)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        layers.append(nn.MaxPool2d(3, 2, 1))
        channels = 64
        for index, blocks in enumerate((3, 4, 6, 3)):
            width = 64 << index
            for block in range(blocks):
                layers.append(Bottleneck(channels, width, 2 if index and not block else 1))
                channels = 4 * width
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(2048, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class BertLayer(nn.Module):
    """Self-attention and feed-forward with post-normalization."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.drop, self.gelu = nn.Dropout(0.1), nn.GELU()

    def split(self, x: Tensor) -> Tensor:
        n, s, _ = x.shape
        return x.view(n, s, self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n, s, hidden = x.shape
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / (hidden // self.heads) ** 0.5 + mask
        context = torch.matmul(self.drop(torch.softmax(scores, -1)), v)
        context = context.permute(0, 2, 1, 3).contiguous().view(n, s, hidden)
        x = self.norm1(x + self.drop(self.out(context)))
        return self.norm2(x + self.drop(self.down(self.gelu(self.up(x)))))


class BertForQuestions(nn.Module):
    """Token numbers (N, S) to start and end scores (N, S, 2)."""

    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int = 30522, longest: int = 512) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, hidden), nn.Embedding(longest, hidden)
        self.kinds, self.norm, self.drop = nn.Embedding(2, hidden), nn.LayerNorm(hidden), nn.Dropout(0.1)
        self.layers = nn.ModuleList(BertLayer(hidden, heads) for _ in range(layers))
        self.head = nn.Linear(hidden, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        x = self.drop(self.norm(self.words(tokens) + self.places(places) + self.kinds(torch.zeros_like(tokens))))
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


class RelativeLayer(nn.Module):
    """Transformer-XL's layer: attention over the segment and its memory with relative positions."""

    def __init__(
        self, hidden: int, heads: int, width: int, inner: int, dropout: float, attention_dropout: float
    ) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.qkv = nn.Linear(hidden, 3 * heads * width, bias=False)
        self.place = nn.Linear(hidden, heads * width, bias=False)
        self.out = nn.Linear(heads * width, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.drop, self.drop_attention = nn.Dropout(dropout), nn.Dropout(attention_dropout)

    def forward(self, x: Tensor, memory: Tensor, places: Tensor, u: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q_len, batch, _ = x.shape
        whole = torch.cat([memory, x])
        k_len = whole.shape[0]
        q, k, values = self.qkv(whole).chunk(3, -1)
        q = q[-q_len:].view(q_len, batch, self.heads, self.width)
        k = k.view(k_len, batch, self.heads, self.width)
        values = values.view(k_len, batch, self.heads, self.width)
        r = self.place(places).view(k_len, self.heads, self.width)
        by_content = torch.einsum("ibnd,jbnd->bnij", q + u, k)
        by_place = torch.einsum("ibnd,jnd->bnij", q + v, r)
        padded = torch.cat([by_place.new_zeros(batch, self.heads, q_len, 1), by_place], -1)
        shifted = padded.view(batch, self.heads, k_len + 1, q_len)[:, :, 1:].view_as(by_place)
        scores = (by_content + shifted).mul_(self.width**-0.5).masked_fill_(mask, -float("inf"))
        weights = self.drop_attention(torch.softmax(scores, -1))
        context = torch.einsum("bnij,jbnd->ibnd", weights, values).contiguous()
        x = self.norm1(x + self.drop(self.out(context.view(q_len, batch, self.heads * self.width))))
        return self.norm2(x + self.drop(self.down(self.drop(self.up(x).relu_()))))


class TransformerXL(nn.Module):
    """Token numbers (T, N) and targets of the same shape to the loss over all 267,735 words, and the next memory.

    The published runs left `--adaptive` out (their logs say `adaptive=False`, 191,948,759 and 519,963,095
    parameters), so every token has a score for every word, by the embedding's own weights.
    """

    WORDS = 267735

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        inner: int,
        dropout: float,
        attention_dropout: float,
        width: int = 64,
    ) -> None:
        super().__init__()
        self.hidden = hidden
        self.words = nn.Embedding(self.WORDS, hidden)
        self.bias = nn.Parameter(torch.zeros(self.WORDS))
        self.u, self.v = (nn.Parameter(torch.zeros(heads, width)) for _ in range(2))
        self.layers = nn.ModuleList(
            RelativeLayer(hidden, heads, width, inner, dropout, attention_dropout) for _ in range(layers)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, targets: Tensor, memories: Tensor) -> tuple[Tensor, Tensor]:
        length, batch = tokens.shape
        x = self.words(tokens).mul_(self.hidden**0.5)
        k_len = length + memories.shape[1]
        mask = torch.triu(x.new_ones(length, k_len), diagonal=1 + k_len - length).bool()[None, None]
        steps = torch.arange(k_len - 1, -1, -1.0, device=x.device, dtype=x.dtype)
        angles = torch.outer(steps, torch.ones(self.hidden // 2, device=x.device, dtype=x.dtype))
        places = self.drop(torch.cat([angles.sin(), angles.cos()], -1)[:, None])
        x = self.drop(x)
        inputs = []
        for layer, memory in zip(self.layers, memories, strict=True):
            inputs.append(x.detach())
            x = layer(x, memory, places, self.u, self.v, mask)
        x = self.drop(x).view(length * batch, self.hidden)
        scores = nn.functional.linear(x, self.words.weight, self.bias)
        loss = -torch.log_softmax(scores, -1).gather(1, targets.view(-1, 1))
        return loss.float().mean(), torch.stack(inputs)


class GptBlock(nn.Module):
    """GPT-2's block: normalization first, attention over what came before."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        n, s, hidden = x.shape
        parts = self.qkv(self.norm1(x)).split(hidden, 2)
        q, k, v = (part.view(n, s, self.heads, hidden // self.heads).transpose(1, 2) for part in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(n, s, hidden))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Gpt2(nn.Module):
    """Token numbers (N, S) to scores (N, S, 50304); the last layer has the embedding's weights."""

    WORDS = 50304  # 50257, padded to a multiple of 64 as people do

    def __init__(self, layers: int = 12, hidden: int = 768, heads: int = 12, longest: int = 1024) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(self.WORDS, hidden), nn.Embedding(longest, hidden)
        self.blocks = nn.ModuleList(GptBlock(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return nn.functional.linear(self.norm(x), self.words.weight)
