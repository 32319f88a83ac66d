"""Metrics of torchmetrics that live on the GPU, against their values on the CPU.

windtunnel run --gpus A100 torchmetrics_cuda.py
"""

import torch
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassCalibrationError,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.regression import MeanAbsoluteError, PearsonCorrCoef, R2Score


def main() -> None:
    """Update twice, compute, compare, reset."""
    torch.manual_seed(0)
    scores, labels = torch.rand(2, 64, 5).softmax(-1), torch.randint(0, 5, (2, 64))
    values, targets = torch.rand(2, 64), torch.rand(2, 64)
    shared = {"num_classes": 5}
    classify = MetricCollection(
        [
            MulticlassAccuracy(**shared),
            MulticlassF1Score(**shared),
            MulticlassAUROC(**shared),
            MulticlassConfusionMatrix(**shared),
            MulticlassCalibrationError(**shared),
        ]
    )
    regress = MetricCollection([MeanAbsoluteError(), PearsonCorrCoef(), R2Score()])
    expected = {}
    for device in ("cpu", "cuda"):
        classify.to(device).reset()
        regress.to(device).reset()
        mean = MeanMetric().to(device)
        for i in range(2):
            classify.update(scores[i].to(device), labels[i].to(device))
            regress.update(values[i].to(device), targets[i].to(device))
            mean.update(values[i].to(device))
        found = {**classify.compute(), **regress.compute(), "mean": mean.compute()}
        assert all(value.device.type == device for value in found.values())
        found = {name: value.cpu() for name, value in found.items()}
        expected = expected or found
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name])
    print(f"{len(expected)} metrics agree with the CPU's")


if __name__ == "__main__":
    main()
