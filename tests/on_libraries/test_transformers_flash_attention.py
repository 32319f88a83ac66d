"""transformers with `attn_implementation="flash_attention_2"` or 3, by the stand-ins for flash_attn, beside SDPA."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

tokens = torch.randint(0, 1000, (2, 33), generator=torch.Generator().manual_seed(1)).cuda()
mask = torch.ones_like(tokens)
mask[1, :9] = 0
found = []
for implementation in ("sdpa", "IMPLEMENTATION"):
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=1000, attn_implementation=implementation)
    model = LlamaForCausalLM(config).to(device="cuda", dtype=torch.bfloat16)
    out = model(input_ids=tokens, attention_mask=mask, labels=tokens)
    out.loss.backward()
    found.append((out.logits[0].float(), model.model.layers[0].self_attn.q_proj.weight.grad.float()))
    print("tokens", model.generate(tokens[:1, :8], max_new_tokens=6, do_sample=False)[0, 8:].tolist())
for one, other in zip(*found):
    print("off", ((one - other).norm() / one.norm()).item())
print("done")
"""


VERSIONS = {"flash_attention_2": "flash_attn 2.8.3", "flash_attention_3": "flash_attn_interface 3.0.0"}


def run(folder: Path, implementation: str, *options: str, program: str = PROGRAM) -> str:
    (folder / "program.py").write_text(program.replace("IMPLEMENTATION", implementation))
    command = [sys.executable, "-m", "windtunnel", "run", "--gpus", "H100", *options, "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count(f"stand-in for part of {VERSIONS[implementation]}") == 1
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("implementation", VERSIONS)
def test_it_computes_what_sdpa_does(tmp_path: Path, implementation: str) -> None:
    out = run(tmp_path, implementation)
    assert all(float(error) < 0.02 for error in re.findall(r"off (\S+)", out))
    first, second = re.findall(r"tokens (.*)", out)
    assert first == second


@pytest.mark.long
@pytest.mark.parametrize("implementation", VERSIONS)
def test_it_runs_without_data(tmp_path: Path, implementation: str) -> None:
    without_values = PROGRAM.replace("[0, 8:].tolist()", ".shape")  # which tokens they are is not known
    out = run(tmp_path, implementation, "--no-data", program=without_values)
    assert out.count("tokens torch.Size([1, 14])\n") == 2
    assert out.endswith("done\n")
