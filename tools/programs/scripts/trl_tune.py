"""TRL: supervised fine-tuning with LoRA, then direct preference optimization, of a small Llama on local words.

windtunnel run --gpus A100 trl_tune.py
"""

from pathlib import Path

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
WORDS = [*SPECIAL.values(), *(f"w{i}" for i in range(40))]
COMMON = {"per_device_train_batch_size": 4, "report_to": [], "logging_steps": 2, "bf16": True, "save_strategy": "no"}


def saved(folder: Path) -> PreTrainedTokenizerFast:
    """Save a small model with a tokenizer of whole words, as a checkpoint from the hub is."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **SPECIAL)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def main() -> None:
    """Both trainers, a few steps each."""
    folder = Path("llama")
    tokenizer = saved(folder)
    texts = [" ".join(f"w{(start + i) % 40}" for i in range(10)) for start in range(32)]
    tuner = SFTTrainer(
        LlamaForCausalLM.from_pretrained(folder),
        SFTConfig("sft", max_steps=8, learning_rate=1e-2, max_length=32, **COMMON),
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    )
    tuned = tuner.train().training_loss
    pairs = {
        "prompt": [f"w{i} w{i + 1}" for i in range(16)],
        "chosen": [f" w{i + 2} w{i + 3}" for i in range(16)],
        "rejected": [" w1 w1"] * 16,
    }
    preference = DPOTrainer(
        LlamaForCausalLM.from_pretrained(folder),
        args=DPOConfig("dpo", max_steps=4, **COMMON),
        train_dataset=Dataset.from_dict(pairs),
        processing_class=tokenizer,
    )
    preferred = preference.train().training_loss
    print(f"SFT's loss {tuned:.3f}, DPO's {preferred:.3f} on {preference.accelerator.device}")


if __name__ == "__main__":
    main()
