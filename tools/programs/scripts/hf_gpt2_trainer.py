"""GPT-2 from a configuration, trained with Hugging Face's `Trainer` on tokens made here.

windtunnel run --gpus A100 hf_gpt2_trainer.py [MAX_STEPS]
windtunnel run --gpus 2xA100 --nproc-per-node 2 hf_gpt2_trainer.py
"""

import sys
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Counting(Dataset):
    """Sequences that count upwards modulo the vocabulary, so that the next token can be learnt."""

    def __init__(self, examples: int, length: int, vocabulary: int) -> None:
        start = torch.arange(examples).unsqueeze(1)
        self.tokens = (start + torch.arange(length)) % vocabulary

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    """Train, evaluate, and say what the loss was."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    set_seed(0)
    config = GPT2Config(vocab_size=512, n_positions=128, n_embd=128, n_layer=4, n_head=4)
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            max_steps=steps,
            learning_rate=1e-3,
            logging_steps=5,
            save_steps=10,
            eval_strategy="steps",
            eval_steps=10,
            fp16=True,
            report_to=[],
        )
        trainer = Trainer(model, arguments, train_dataset=Counting(256, 64, 512), eval_dataset=Counting(32, 64, 512))
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        after = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        print(f"evaluation loss {before:.3f} before, {after:.3f} after {steps} steps on {arguments.device}")


if __name__ == "__main__":
    main()
