"""Small local data in the formats that other people's programs read, so that nothing is downloaded."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import struct
from pathlib import Path

import numpy as np

WORDS = ["the", "of", "and", "to", "in", "is", "it", "that", "was", "for", "are", "with", "his", "they", "this", "from"]


def text(folder: Path) -> None:
    """`text/train.txt`, `valid.txt` and `test.txt`: sentences of common words, as word_language_model reads them."""
    draw = random.Random(0)
    (folder / "text").mkdir()
    for name, lines in {"train": 120, "valid": 30, "test": 30}.items():
        sentences = [" ".join(draw.choices(WORDS, k=12)) for _ in range(lines)]
        (folder / "text" / f"{name}.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")


def characters(folder: Path) -> None:
    """`data/local/train.bin`, `val.bin`, `meta.pkl`: characters as 16-bit numbers, as nanoGPT's prepare.py has them."""
    draw = random.Random(0)
    written = " ".join(draw.choices(WORDS, k=5000))
    letters = sorted(set(written))
    numbers = {letter: number for number, letter in enumerate(letters)}
    made = folder / "data" / "local"
    made.mkdir(parents=True)
    split = len(written) * 9 // 10
    for name, part in {"train": written[:split], "val": written[split:]}.items():
        made.joinpath(f"{name}.bin").write_bytes(struct.pack(f"<{len(part)}H", *(numbers[c] for c in part)))
    meta = {"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": numbers}
    made.joinpath("meta.pkl").write_bytes(pickle.dumps(meta))


def fashion_mnist(folder: Path) -> None:
    """FashionMNIST and MNIST as torchvision keeps them, in `data` and beside the program: 512 and 128 noisy images."""
    for root in (folder / "data", folder.parent / "data", folder):
        for name in ("FashionMNIST", "MNIST"):
            _images(root / name / "raw")


def _images(raw: Path) -> None:
    """Images of noise whose brightness is the label, in the idx format."""
    draw = random.Random(0)
    raw.mkdir(parents=True)
    for name, count in {"train": 512, "t10k": 128}.items():
        labels = bytes(index % 10 for index in range(count))
        images = b"".join(bytes(25 * label + draw.randrange(25) for _ in range(784)) for label in labels)
        files = {
            f"{name}-images-idx3-ubyte": struct.pack(">4i", 0x803, count, 28, 28) + images,
            f"{name}-labels-idx1-ubyte": struct.pack(">2i", 0x801, count) + labels,
        }
        for file, content in files.items():
            raw.joinpath(file).write_bytes(content)
            raw.joinpath(f"{file}.gz").write_bytes(gzip.compress(content))


def mnist_arrays(folder: Path) -> None:
    """`data/mnist/mnist.pkl.gz`: images as rows of floats with their labels, as the tutorial on torch.nn reads them."""
    draw = np.random.default_rng(0)
    parts = []
    for count in (512, 128, 128):
        labels = np.arange(count) % 10
        images = (labels[:, None] + draw.random((count, 784))) / 11
        parts.append((images.astype(np.float32), labels))
    made = folder / "data" / "mnist"
    made.mkdir(parents=True)
    made.joinpath("mnist.pkl.gz").write_bytes(gzip.compress(pickle.dumps(tuple(parts))))


def names(folder: Path) -> None:
    """`data/names/*.txt`: names of three languages, a name a line; each language has letters of its own."""
    draw = random.Random(0)
    made = folder / "data" / "names"
    made.mkdir(parents=True)
    for language, letters in {"Italian": "aeiolnr", "German": "schtzuw", "Polish": "kzwybjd"}.items():
        lines = ["".join(draw.choices(letters, k=6)).capitalize() for _ in range(28)]
        made.joinpath(f"{language}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def phrases(folder: Path) -> None:
    """`data/eng-fra.txt`: English and French sentences, with those that the tutorial translates at its end."""
    draw = random.Random(0)
    pairs = [
        ("he is not as tall as his father", "il n est pas aussi grand que son pere"),
        ("i am too tired to drive", "je suis trop fatigue pour conduire"),
        ("i am sorry if this is a stupid question", "je suis desole si c est une question idiote"),
        ("i am really proud of you", "je suis reellement fiere de vous"),
    ]
    words = {"tired": "fatigue", "tall": "grand", "proud": "fiere", "sorry": "desole"}
    for _ in range(28):
        one, other = draw.choices(sorted(words), k=2)
        pairs.append((f"i am {one} and {other}", f"je suis {words[one]} et {words[other]}"))
    (folder / "data").mkdir(exist_ok=True)
    lines = [f"{english}\t{french}" for english, french in pairs]
    folder.joinpath("data", "eng-fra.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def c4(folder: Path) -> None:
    """`tests/assets/c4_test/data.json`: texts of common words, a JSON object a line, as torchtitan reads them."""
    draw = random.Random(0)
    made = folder / "tests" / "assets" / "c4_test"
    made.mkdir(parents=True)
    lines = [json.dumps({"text": " ".join(draw.choices(WORDS, k=200))}) for _ in range(200)]
    made.joinpath("data.json").write_text("\n".join(lines) + "\n", encoding="utf-8")


def stories(folder: Path) -> None:
    """`data/TinyStories_all_data/data00.bin` and `data01.bin`: tokens, as llama2.c has them."""
    draw = random.Random(0)
    made = folder / "data" / "TinyStories_all_data"
    made.mkdir(parents=True)
    for name in ("data00", "data01"):
        tokens = draw.choices(range(3, 300), k=4000)
        made.joinpath(f"{name}.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))


def shakespeare(folder: Path) -> None:
    """`tokens.bin` in the format of llm.c, and a `tiktoken` without the vocabulary that the real one downloads."""
    draw = random.Random(0)
    tokens = draw.choices(range(1000), k=4000)
    header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    folder.joinpath("tokens.bin").write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))
    folder.joinpath("tiktoken.py").write_text("def get_encoding(name):\n    return None\n", encoding="utf-8")


MAKERS = {
    maker.__name__: maker
    for maker in (text, characters, fashion_mnist, mnist_arrays, names, phrases, c4, stories, shakespeare)
}
"""The functions that a row of programs.toml may name."""
