"""GPT-2 and BERT from configurations on the GPU: greedy, sampled and beam generation, a masked-token forward.

windtunnel run --gpus A100 hf_generate.py
"""

import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, set_seed


def main() -> None:
    """Generate with three strategies; predict masked tokens in half precision."""
    set_seed(0)
    config = GPT2Config(vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    model = GPT2LMHeadModel(config).cuda().eval()
    prompt = torch.randint(3, 512, (2, 8), device="cuda")
    shape = {"max_new_tokens": 12, "min_new_tokens": 12, "pad_token_id": 0}
    greedy = model.generate(prompt, do_sample=False, **shape)
    sampled = model.generate(prompt, do_sample=True, top_k=20, temperature=0.8, **shape)
    beams = model.generate(prompt, do_sample=False, num_beams=3, **shape)
    masked = torch.ones_like(prompt)
    masked[0, :3] = 0
    padded = model.generate(prompt, attention_mask=masked, do_sample=False, **shape)
    for name, tokens in {"greedy": greedy, "sampled": sampled, "beams": beams, "padded": padded}.items():
        assert tokens.device.type == "cuda"
        print(name, tuple(tokens.shape), str(tokens.device))
    bert = BertForMaskedLM(
        BertConfig(vocab_size=512, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)
    )
    bert = bert.to("cuda", dtype=torch.float16).eval()
    with torch.inference_mode():
        logits = bert(prompt, attention_mask=masked).logits
    print("bert", tuple(logits.shape), logits.dtype, logits.argmax(-1).cpu().shape)


if __name__ == "__main__":
    main()
