"""QLoRA as people write it, with transformers, peft and bitsandbytes: with data and without."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
import bitsandbytes as bnb

size = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, vocab_size=1000)
LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **size)).save_pretrained("tiny")
four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                               bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_use_double_quant=True)
model = AutoModelForCausalLM.from_pretrained("tiny", quantization_config=four_bits, device_map={"": 0})
model = prepare_model_for_kbit_training(model)
lora = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
model = get_peft_model(model, lora)
optimizer = bnb.optim.PagedAdamW8bit(model.parameters(), lr=1e-3)
tokens = torch.randint(0, 1000, (2, 64), generator=torch.Generator().manual_seed(0)).cuda()
for _ in range(3):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())
print("peak", torch.cuda.max_memory_allocated())
"""


def found(folder: Path, *options: str) -> dict[str, list[float]]:
    (folder / "qlora.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "windtunnel", "run", "--gpus", "RTX4090", *options, "qlora.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {word: [float(x) for x in re.findall(rf"{word} (\S+)", done.stdout)] for word in ("loss", "peak")}


@pytest.mark.long
def test_it_learns_and_takes_the_same_memory_without_data(tmp_path: Path) -> None:
    with_data, without = found(tmp_path), found(tmp_path, "--no-data")
    assert with_data["loss"][2] < with_data["loss"][0] < 7.5
    assert with_data["peak"] == without["peak"]
