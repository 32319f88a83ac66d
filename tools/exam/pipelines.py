"""Whole pipelines of huggingface/diffusers, unmodified, whose authors printed seconds and peaks of memory.

    make exam-pipelines ARGS="[--only flux] [--figures]"    # needs diffusers

A row of `tools/corpus/pipelines_published.csv` is one call of a pipeline: so many steps of its denoiser and a decoding
of the latents, eager and without data. Texts are taken as encoded, and what the host does between the steps is not
counted: both take tens of milliseconds. Peaks are those above the weights. Nothing is fitted on these rows.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLCogVideoX,
    CogVideoXTransformer3DModel,
    FluxTransformer2DModel,
    UNet2DConditionModel,
)
from diffusers.models.attention_processor import AttnProcessor
from torch import nn

import windtunnel
from tools.corpus import tables
from tools.corpus.outcomes import Outcome, error_figures, summarize
from tools.docs import figures
from tools.exam.others import PEAK_BAND

CALLS_BEFORE = 4
"""Together longer than what a power limit looks back."""
CHANNELS = {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "norm_num_groups": 32}
"""What the image decoders have in common."""
Tensor = torch.Tensor
Call = Callable[[], object]


class PipelineCall(NamedTuple):
    """A call of a pipeline: `attention` is "fused" or "plain", `peak_gib` what it took above the weights."""

    pipeline: str
    gpu: str
    dtype: torch.dtype
    batch: int
    attention: str
    seconds: float
    peak_gib: float | None
    cuda: str

    @property
    def name(self) -> str:
        """The row in words."""
        return f"{self.pipeline} {str(self.dtype).removeprefix('torch.')} batch {self.batch}, {self.attention}"

    def made(self, kind: Callable[..., nn.Module], **sizes: object) -> Any:
        """A model of the row's type, on the GPU."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        with torch.device("cuda"):
            network: Any = kind(**sizes).eval()
        torch.set_default_dtype(before)
        if self.attention == "plain":
            network.set_attn_processor(AttnProcessor())
        return network

    def zeros(self, *sizes: int) -> Tensor:
        return torch.zeros(sizes, dtype=self.dtype, device="cuda")


def read() -> list[PipelineCall]:
    """The table."""
    return [
        PipelineCall(row["pipeline"], row["gpu"], getattr(torch, row["dtype"]), int(row["batch"]), row["attention"],
            float(row["seconds"]), float(row["peak_gib"]) if row["peak_gib"] else None, row["cuda"])
        for row in tables.read("pipelines_published.csv")
    ]  # fmt: skip


def decoder_of_images(row: PipelineCall, channels: int, **more: object) -> Call:
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    decoder = row.made(AutoencoderKL, latent_channels=channels, sample_size=1024, **CHANNELS, **blocks, **more)
    latents = row.zeros(row.batch, channels, 128, 128)
    return lambda: decoder.decode(latents, return_dict=False)


def sdxl(row: PipelineCall) -> tuple[Call, Call]:
    """Stable Diffusion XL, 1024 x 1024; guidance doubles the batch."""
    network = row.made(
        UNet2DConditionModel, addition_embed_type="text_time", addition_embed_type_num_heads=64,
        addition_time_embed_dim=256, attention_head_dim=(5, 10, 20), block_out_channels=(320, 640, 1280),
        cross_attention_dim=2048, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), sample_size=128,
        projection_class_embeddings_input_dim=2816, transformer_layers_per_block=(1, 2, 10), use_linear_projection=True,
    )  # fmt: skip
    latents, text = row.zeros(2 * row.batch, 4, 128, 128), row.zeros(2 * row.batch, 77, 2048)
    added = {"text_embeds": row.zeros(2 * row.batch, 1280), "time_ids": row.zeros(2 * row.batch, 6)}
    time = torch.tensor(10, device="cuda")
    return lambda: network(latents, time, text, added_cond_kwargs=added, return_dict=False), decoder_of_images(row, 4)


def flux(row: PipelineCall) -> tuple[Call, Call]:
    """FLUX.1-dev, 1024 x 1024: 12 billion parameters, guidance is an input."""
    network = row.made(FluxTransformer2DModel, guidance_embeds=True)
    pixels, text, pooled = row.zeros(row.batch, 4096, 64), row.zeros(row.batch, 512, 4096), row.zeros(row.batch, 768)
    places, words, time = row.zeros(row.batch, 4096, 3), row.zeros(row.batch, 512, 3), row.zeros(row.batch)
    guidance = torch.full((row.batch,), 3.5, device="cuda")
    decode = decoder_of_images(row, 16, use_quant_conv=False, use_post_quant_conv=False)
    return lambda: network(pixels, text, pooled, time, places, words, guidance, return_dict=False), decode


def cogvideox(row: PipelineCall, layers: int, heads: int, rotary: bool) -> tuple[Call, Call]:
    """CogVideoX, 49 frames of 480 x 720; guidance doubles the batch."""
    network = row.made(
        CogVideoXTransformer3DModel, num_attention_heads=heads, num_layers=layers,
        use_rotary_positional_embeddings=rotary,
    )  # fmt: skip
    decoder = row.made(AutoencoderKLCogVideoX)
    latents, text = row.zeros(2 * row.batch, 13, 16, 60, 90), row.zeros(2 * row.batch, 226, 4096)
    time = torch.ones(2 * row.batch, dtype=torch.long, device="cuda")
    turns = (torch.zeros(17550, 64, device="cuda"), torch.zeros(17550, 64, device="cuda")) if rotary else None
    of_decoder = row.zeros(row.batch, 16, 13, 60, 90)

    def denoise() -> object:
        return network(latents, text, time, image_rotary_emb=turns, return_dict=False)

    return denoise, lambda: decoder.decode(of_decoder, return_dict=False)


PIPELINES: dict[str, tuple[int, Callable[[PipelineCall], tuple[Call, Call]]]] = {
    "sdxl": (30, sdxl),
    "flux-dev": (28, flux),
    "cogvideox-2b": (50, lambda row: cogvideox(row, 30, 30, False)),
    "cogvideox-5b": (50, lambda row: cogvideox(row, 42, 48, True)),
}
"""Steps, and what makes a step and the decoding, by the name of a row's pipeline."""


def seconds_of(call: Call) -> float:
    """The modelled time of a call after others that hold the load."""
    for _ in range(CALLS_BEFORE):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def judged(row: PipelineCall) -> tuple[Outcome, Outcome | None]:
    """What the clock says of a row, and what memory does where its peak was printed."""
    steps, make = PIPELINES[row.pipeline]
    with windtunnel.emulate(row.gpu, no_data=True, cuda_version=row.cuda) as session, torch.no_grad():
        torch.set_float32_matmul_precision("high")
        denoise, decode = make(row)
        weights = torch.cuda.memory_allocated()
        seconds = seconds_of(decode) + steps * seconds_of(denoise)
        session.write_band()
        band, peak_gib = session.trace.facts["band"], (torch.cuda.max_memory_allocated() - weights) / 2**30
    time = Outcome(row.name, row.gpu, seconds, row.seconds, band)
    if row.peak_gib is None:
        return time, None
    return time, Outcome(row.name, "peaks of memory", peak_gib, row.peak_gib, PEAK_BAND)


def write_figures(found: Sequence[tuple[Outcome, Outcome | None]]) -> None:
    """Write the table of docs/exam.md: by pipeline, and of the peaks."""
    parts: dict[str, list[Outcome]] = defaultdict(list)
    for time, peak in found:
        parts[f"{time.model.split()[0]} on {time.group}"].append(time)
        if peak is not None:
            parts["peaks of memory"].append(peak)
    figures.record("exam-pipelines", {name: {"what": name, **error_figures(some)} for name, some in parts.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows of pipelines whose name has this in it")
    parser.add_argument("--figures", action="store_true", help="write the table of docs/exam.md")
    options = parser.parse_args()
    found = []
    for row in read():
        if options.only in row.pipeline:
            found.append(judged(row))
            for one, unit in zip(found[-1], ("s", "GiB"), strict=True):
                if one is not None:
                    print(f"{row.gpu:16} {one.model:40} {one.predicted:8.2f} of {one.published:8.2f} {unit:3} "
                          f"{one.ratio - 1.0:+7.1%}, {'in' if one.inside else 'out'}side +-{one.band:.0%}")  # fmt: skip
    summarize(one for pair in found for one in pair if one is not None)
    if options.figures:
        write_figures(found)


if __name__ == "__main__":
    main()
