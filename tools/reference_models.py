"""Well-known models on stock torch, for `tools/accuracy.py`: only their shapes matter, so they also run on `meta`.

Written from the papers and from what NVIDIA's DeepLearningExamples say of their configurations; attention is spelled
out (products and softmax), as it was in those runs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Dropout as CUDA runs it: one fused kernel."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return torch.native_dropout(x, self.p, True)[0]


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
        self.drop, self.gelu = Dropout(0.1), nn.GELU()

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
        self.kinds, self.norm, self.drop = nn.Embedding(2, hidden), nn.LayerNorm(hidden), Dropout(0.1)
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

    def __init__(self, hidden: int, heads: int, width: int, inner: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.qkv, self.place = nn.Linear(hidden, 3 * heads * width, bias=False), nn.Linear(hidden, heads * width, False)
        self.out = nn.Linear(heads * width, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.norm1, self.norm2, self.drop = nn.LayerNorm(hidden), nn.LayerNorm(hidden), Dropout(0.1)

    def forward(self, x: Tensor, memory: Tensor, places: Tensor, u: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q_len, batch, _ = x.shape
        whole = torch.cat([memory, x])
        k_len = whole.shape[0]
        q, k, values = self.qkv(whole).chunk(3, -1)
        q = q[-q_len:].reshape(q_len, batch * self.heads, self.width)
        k = k.reshape(k_len, batch * self.heads, self.width)
        values = values.reshape(k_len, batch * self.heads, self.width)
        r = self.place(places).view(k_len, self.heads, self.width)
        by_content = torch.bmm((q + u).transpose(0, 1), k.permute(1, 2, 0))
        q_v = (q + v).view(q_len, batch, self.heads, self.width).permute(2, 0, 1, 3).reshape(self.heads, -1, self.width)
        by_place = torch.bmm(q_v, r.permute(1, 2, 0)).view(self.heads, q_len, batch, k_len).permute(2, 0, 1, 3)
        by_place = by_place.reshape(batch * self.heads, q_len, k_len)
        padded = torch.cat([by_place.new_zeros(by_place.shape[0], q_len, 1), by_place], -1)
        shifted = padded.view(-1, k_len + 1, q_len)[:, 1:].reshape_as(by_place)
        scores = (by_content + shifted).mul_(self.width**-0.5).masked_fill(mask, float("-inf"))
        context = torch.bmm(self.drop(torch.softmax(scores, -1)), values.transpose(0, 1))
        context = context.transpose(0, 1).reshape(q_len, batch, self.heads * self.width)
        x = self.norm1(x + self.drop(self.out(context)))
        return self.norm2(x + self.drop(self.down(self.drop(torch.relu(self.up(x))))))


class TransformerXL(nn.Module):
    """Token numbers (T, N) to the loss of an adaptive softmax over 267,735 words.

    The words of each cluster are taken as fixed shares of a segment (frequent words first), as shapes must not depend
    on values here: 88 %, 5 %, 6 % and 1 %.
    """

    CUTOFFS = (19997, 39997, 199997, 267735)
    SHARES = (1.0, 0.05, 0.06, 0.01)

    def __init__(self, layers: int, hidden: int, heads: int, inner: int, width: int = 64, divisor: int = 1) -> None:
        super().__init__()
        self.hidden = hidden
        sizes = [b - a for a, b in zip((0, *self.CUTOFFS[:-1]), self.CUTOFFS, strict=True)]
        dims = [hidden // divisor**i for i in range(4)]
        self.words = nn.ModuleList(nn.Embedding(n, d) for n, d in zip(sizes, dims, strict=True))
        self.widen = nn.ModuleList(nn.Linear(d, hidden, bias=False) for d in dims)
        self.u = nn.Parameter(torch.empty(heads, width))
        self.v = nn.Parameter(torch.empty(heads, width))
        self.layers = nn.ModuleList(RelativeLayer(hidden, heads, width, inner) for _ in range(layers))
        self.tails = nn.ModuleList(
            nn.Linear(d, n + 3 * (i == 0)) for i, (n, d) in enumerate(zip(sizes, dims, strict=True))
        )
        self.drop = Dropout(0.1)

    def forward(self, tokens: Tensor, memories: list[Tensor]) -> Tensor:
        length, batch = tokens.shape
        total = length * batch
        x = torch.zeros(total, self.hidden, device=tokens.device, dtype=self.u.dtype)
        for words, widen, share in zip(self.words, self.widen, self.SHARES, strict=True):
            part = tokens.view(-1)[: max(8, int(total * share))]
            x = x.index_add(0, part, widen(words(part)))
        x = self.drop(x.view(length, batch, self.hidden).mul_(self.hidden**0.5))
        k_len = length + memories[0].shape[0]
        places = self.drop(torch.empty(k_len, self.hidden, device=tokens.device, dtype=x.dtype).sin())
        mask = torch.ones(1, length, k_len, dtype=torch.bool, device=tokens.device)
        u, v = (bias.repeat(batch, 1) for bias in (self.u, self.v))
        for layer, memory in zip(self.layers, memories, strict=True):
            x = layer(x, memory, places, u, v, mask)
        rows = self.drop(x).view(total, self.hidden)
        loss = torch.zeros((), device=tokens.device, dtype=torch.float32)
        for tail, widen, share in zip(self.tails, self.widen, self.SHARES, strict=True):
            count = max(8, int(total * share))
            scores = tail(rows[:count] @ widen.weight)
            loss = loss - torch.log_softmax(scores, -1, dtype=torch.float32).gather(1, tokens.view(-1, 1)[:count]).sum()
        return loss
