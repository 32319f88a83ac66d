"""LSTM, GRU and tanh networks over sequences, forward and backward, as cuDNN runs them."""

from __future__ import annotations

from tools.hardware.kernels import Calls, half

SIZES = [(64, 35, 200, 2), (20, 35, 1500, 2), (10, 512, 256, 6), (128, 256, 512, 1), (32, 1024, 128, 1)]
"""Sequences, their length, width, layers."""


def calls(short: bool) -> Calls:
    """Each in FP32, TF32 and 16 bits; one in both directions."""
    import torch

    for batch, length, width, layers in [(2, 4, 16, 1)] if short else SIZES:
        for kind in (torch.nn.LSTM, torch.nn.GRU):
            for words, dtype, tf32 in (
                (" fp32", torch.float32, False),
                (" tf32", torch.float32, True),
                ("", half(), True),
            ):
                net = kind(width, width, layers, batch_first=True).to("cuda", dtype)
                x = torch.randn(batch, length, width, device="cuda", dtype=dtype, requires_grad=True)
                name = f"{kind.__name__} {batch} x {length} x {width}, {layers} layers{words}"

                def forward(net=net, x=x, tf32=tf32):  # type: ignore[no-untyped-def]
                    torch.backends.cudnn.allow_tf32 = tf32
                    with torch.no_grad():
                        return net(x)[0]

                def step(net=net, x=x, tf32=tf32):  # type: ignore[no-untyped-def]
                    torch.backends.cudnn.allow_tf32 = tf32
                    net(x)[0].sum().backward()

                yield name, forward
                yield f"{name}, forward and backward", step
    if not short:
        both_ways = torch.nn.LSTM(256, 512, 3, batch_first=True, bidirectional=True).cuda()
        x = torch.randn(10, 512, 256, device="cuda")
        yield "LSTM in both directions 10 x 512 x 256 to 512, 3 layers tf32", lambda: both_ways(x)[0]
