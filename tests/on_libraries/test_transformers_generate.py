"""`generate()` of transformers with each of its caches: the tokens of PyTorch on the CPU, and runs without data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM, MistralConfig
from transformers import MistralForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
sizes = dict(vocab_size=128, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2,
             pad_token_id=0, bos_token_id=1, eos_token_id=None)


def model(layers=2, **options):
    torch.manual_seed(0)
    if "sliding_window" in options:
        return MistralForCausalLM(MistralConfig(num_hidden_layers=layers, **sizes, **options)).eval().to(device)
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **sizes)).eval().to(device)


def show(name, tokens):
    print(name, tokens.shape if "--shapes" in sys.argv else tokens.tolist())


prompts = torch.randint(2, 128, (2, 12), generator=torch.Generator().manual_seed(0))
repeated = torch.tensor([[5, 6, 7, 8] * 3])
WAYS = {
    "dynamic": {},
    "static": {"cache_implementation": "static", "disable_compile": True},
    "offloaded": {"cache_implementation": "offloaded"},
    "offloaded_static": {"cache_implementation": "offloaded_static", "disable_compile": True},
    "beams": {"num_beams": 3},
    "ends": {"eos_token_id": [3, 4]},
}
for name, options in WAYS.items():
    if device == "cpu" and "offloaded" in name:
        options = {}  # it needs CUDA, and gives what a cache that stays gives
    for kind, made in (("whole", {}), ("sliding", {"sliding_window": 8})):
        if kind == "sliding" and name == "offloaded_static":
            continue  # transformers itself ends: it offloads no layer with a window, and looks for one to fetch
        tokens = prompts.to(device)
        out = model(**made).generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=8, do_sample=False,
                                     **options)
        show(f"{name} {kind}", out)
for name, options in (("assisted", {"assistant_model": model(1)}), ("lookup", {"prompt_lookup_num_tokens": 3})):
    tokens = repeated.to(device)
    show(name, model().generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=8, do_sample=False,
                                **options))
for asynchronous in (False, device == "cuda"):
    batching = ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64, auto_switch_to_flash=False,
                                        use_async_batching=asynchronous, use_cuda_graph=asynchronous)
    out = model().generate_batch(
        inputs=[row.tolist() for row in prompts], continuous_batching_config=batching,
        generation_config=GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0),
    )
    assert [answer.error for answer in out.values()] == [None, None]
    show("batch", torch.tensor([out[key].generated_tokens for key in sorted(out)]))
"""


def run(folder: Path, *command: str) -> list[str]:
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True,
        text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [line for line in done.stdout.splitlines() if line.endswith("]") or "Size" in line]


@pytest.mark.long
def test_each_cache_gives_the_tokens_of_the_cpu(tmp_path: Path) -> None:
    expected = run(tmp_path, "program.py")
    assert len(expected) == 15
    assert run(tmp_path, "-m", "windtunnel", "run", "--gpus", "A100", "program.py") == expected


@pytest.mark.long
def test_each_cache_runs_without_data_to_the_length_that_was_asked_for(tmp_path: Path) -> None:
    shapes = run(tmp_path, "-m", "windtunnel", "run", "--gpus", "A100", "--no-data", "program.py", "--shapes")
    assert [shape.partition("torch")[2] for shape in shapes] == [".Size([2, 20])"] * 11 + [".Size([1, 20])"] * 2 + [
        ".Size([2, 8])"
    ] * 2
