"""Pairs of numbers turned by their token's angles."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def rotated(
    x: Tensor, cos: Tensor, sin: Tensor, offsets: int | Tensor = 0, interleaved: bool = False, moves: bool = True
) -> Tensor:
    """[batch, tokens, heads, width], whose first 2 * cos.shape[1] numbers turn; text i begins at offsets[i].

    With `moves` False all tokens of a text stand at its beginning.
    """
    wide = 2 * cos.shape[-1]
    tokens = torch.arange(x.shape[1], device=x.device) * moves
    start = torch.as_tensor(offsets, device=x.device).reshape(-1, 1)
    places = (start + tokens).long()
    c, s = (t[places][:, :, None].float() for t in (cos, sin))
    given = x[..., :wide].float()
    one, two = (given[..., ::2], given[..., 1::2]) if interleaved else given.chunk(2, -1)
    turned = (one * c - two * s, one * s + two * c)
    joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat((joined.to(x.dtype), x[..., wide:]), -1)
