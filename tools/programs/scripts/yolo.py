"""ultralytics: a small YOLO trained on pictures of squares, on a GPU and on the CPU: the losses are the same.

windtunnel run --gpus A100 yolo.py

Everything random is drawn on the host; what ultralytics looks for in the network is not needed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.update(YOLO_OFFLINE="true", YOLO_CONFIG_DIR=str(Path.cwd() / "settings"), YOLO_VERBOSE="false")

import numpy as np
from PIL import Image
from torchvision_operators import declare_operators
from ultralytics import YOLO
from ultralytics.models.yolo.detect import DetectionTrainer
from ultralytics.utils.nms import TorchNMS

PICTURES, SIZE = 8, 64


def draw(folder: Path) -> Path:
    """Squares on noise in the layout that ultralytics reads; the file that describes them."""
    random = np.random.default_rng(0)
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for number in range(PICTURES):
        picture = random.integers(0, 60, (SIZE, SIZE, 3), dtype=np.uint8)
        left, top = random.integers(4, 30, 2)
        picture[top : top + 24, left : left + 24] = 200
        Image.fromarray(picture).save(folder / "images" / f"{number}.png")
        box = [(left + 12) / SIZE, (top + 12) / SIZE, 24 / SIZE, 24 / SIZE]
        (folder / "labels" / f"{number}.txt").write_text("0 " + " ".join(f"{x:.4f}" for x in box), encoding="utf-8")
    data = folder / "squares.yaml"
    data.write_text(f"path: {folder.resolve()}\ntrain: images\nval: images\nnames: [square]\n", encoding="utf-8")
    return data


def train(data: Path, device: int | str) -> list[float]:
    """Two epochs; the losses of each batch."""
    losses: list[float] = []

    def keep(trainer: DetectionTrainer) -> None:
        losses.extend(float(value) for value in trainer.loss_items.values())

    model = YOLO("yolo11n.yaml")
    model.add_callback("on_train_batch_end", keep)
    quiet = {"plots": False, "val": False, "save": False, "verbose": False, "workers": 0, "amp": False}
    model.train(data=str(data), device=device, epochs=2, imgsz=SIZE, batch=4, seed=0, optimizer="SGD", **quiet)
    return losses


def main() -> None:
    """Compare; the CPU comes second, since ultralytics hides the GPUs for it."""
    declare_operators()
    import torchvision

    torchvision.ops.nms = TorchNMS.nms  # ultralytics' own, which it takes where there is no torchvision
    data = draw(Path("squares"))
    on_gpu, on_cpu = train(data, 0), train(data, "cpu")
    same = len(on_gpu) == len(on_cpu) >= 12 and np.allclose(on_gpu, on_cpu, rtol=1e-3)
    print(f"yolo: {on_cpu} on the CPU, {on_gpu} on the GPU: {'equal' if same else 'DIFFERENT'}")
    sys.exit(not same)


if __name__ == "__main__":
    main()
