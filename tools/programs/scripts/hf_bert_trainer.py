"""BERT from a configuration, fine-tuned for classification with Hugging Face's `Trainer` on sentences made here.

windtunnel run --gpus 2xV100 hf_bert_trainer.py
"""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed


class Sentences(Dataset):
    """Random tokens of varying length, padded; the label says whether token 7 comes first."""

    def __init__(self, examples: int) -> None:
        maker = torch.Generator().manual_seed(examples)
        self.items = []
        for index in range(examples):
            length = int(torch.randint(8, 33, (), generator=maker))
            tokens = torch.zeros(32, dtype=torch.long)
            tokens[:length] = torch.randint(10, 200, (length,), generator=maker)
            label = index % 2
            tokens[0] = 7 if label else 8
            self.items.append(
                {"input_ids": tokens, "attention_mask": (tokens > 0).long(), "labels": torch.tensor(label)}
            )

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.items[index]


def accuracy(prediction):
    """The share of right answers."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main() -> None:
    """Train and say the accuracy."""
    set_seed(0)
    config = BertConfig(
        vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=32,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=16,
            num_train_epochs=4,
            learning_rate=2e-3,
            gradient_accumulation_steps=2,
            max_grad_norm=1.0,
            logging_steps=4,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            report_to=[],
        )
        trainer = Trainer(
            BertForSequenceClassification(config),
            arguments,
            train_dataset=Sentences(256),
            eval_dataset=Sentences(64),
            compute_metrics=accuracy,
        )
        trainer.train()
        result = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"accuracy {result['eval_accuracy']:.2f} on {arguments.n_gpu} GPU(s) a process")


if __name__ == "__main__":
    main()
