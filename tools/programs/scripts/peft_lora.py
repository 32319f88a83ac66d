"""LoRA adapters of PEFT on a frozen GPT-2 from a configuration, trained in bfloat16, merged, and compared.

windtunnel run --gpus A100 peft_lora.py
"""

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, set_seed


def main() -> None:
    """Train the adapters alone, then fold them into the weights."""
    set_seed(0)
    config = GPT2Config(vocab_size=128, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    model = get_peft_model(
        GPT2LMHeadModel(config), LoraConfig(r=4, lora_alpha=16, target_modules=["c_attn", "c_proj"], lora_dropout=0.1)
    ).cuda()
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    tokens = (torch.arange(8).unsqueeze(1) + torch.arange(32)).cuda() % 128
    losses = []
    for _ in range(15):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    first, *_, last = torch.stack(losses).tolist()
    model.eval()
    with torch.no_grad():
        before = model(input_ids=tokens).logits
        merged = model.merge_and_unload()
        after = merged(input_ids=tokens).logits
    torch.testing.assert_close(before, after, rtol=1e-3, atol=1e-3)
    assert last < first
    print(f"loss {first:.3f} to {last:.3f}; merged weights agree; {merged.device}")


if __name__ == "__main__":
    main()
