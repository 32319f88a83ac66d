"""Numbers on their way out: CSV, TensorBoard, the progress bar."""

from __future__ import annotations

import csv
import io
import time

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from training import ADAM, housing, network

from windtunnel.train import CSVLogger, TensorBoardLogger, Trainer
from windtunnel.train.progress import Progress


def train(**options) -> Trainer:
    trainer = Trainer(5, **{"progress": False} | options)
    trainer.fit(network(), housing(), housing(), loss=nn.MSELoss(), optimizer=ADAM, batch_size=16)
    return trainer


# mission 119
def test_tensorboard_shows_every_epoch(tmp_path):
    trainer = train(logger=TensorBoardLogger(tmp_path), log_every=10)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) == {"loss", "train_loss", "val_loss"}
    values = [event.value for event in events.Scalars("train_loss")]
    assert values == pytest.approx([entry["train_loss"] for entry in trainer.history], rel=1e-6)
    assert [event.step for event in events.Scalars("train_loss")] == [7, 14, 21, 28, 35]
    assert [event.step for event in events.Scalars("loss")] == [10, 20, 30]


def test_csv_has_every_value_in_full(tmp_path):
    trainer = train(logger=CSVLogger(tmp_path))
    with (tmp_path / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["name"] == "val_loss"]
    assert [float(row["value"]) for row in rows] == [entry["val_loss"] for entry in trainer.history]


def test_a_folder_gets_both(tmp_path):
    train(logger=tmp_path)
    assert (tmp_path / "metrics.csv").exists()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1


def test_any_object_with_log_and_close_is_a_logger():
    class Kept:
        def __init__(self):
            self.values, self.closed = [], False

        def log(self, values, step):
            self.values.append((step, sorted(values)))

        def close(self):
            self.closed = True

    kept = Kept()
    train(logger=[kept])
    assert kept.values[0] == (7, ["train_loss", "val_loss"])
    assert kept.closed


def test_nothing_is_written_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train()
    assert list(tmp_path.iterdir()) == []


def test_without_a_terminal_each_epoch_is_a_line_on_stderr(capsys):
    train(progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[4].startswith("epoch 5/5  train_loss ")
    train(progress=False)
    assert capsys.readouterr().err == ""


def terminal() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=True, width=120), file


def test_bar_shows_epoch_rate_and_values(monkeypatch):
    console, file = terminal()
    progress = Progress(True, max_epochs=3, steps_per_epoch=40, console=console)
    progress.draw(epoch=1, step_in_epoch=20, step=60, values={"loss": 0.25})
    progress.epoch_line(1, {"train_loss": 0.5})
    progress.close()
    text = file.getvalue()
    assert "epoch 2/3" in text
    assert "20/40" in text
    assert "loss 0.25" in text
    assert "epoch 2/3  train_loss 0.5" in text


def test_short_training_gets_no_bar():
    console, file = terminal()
    progress = Progress(True, max_epochs=1, steps_per_epoch=2, console=console)
    progress.epoch_line(0, {"train_loss": 0.5})
    progress.close()
    assert file.getvalue() == "epoch 1/1  train_loss 0.5\n"


# mission 49
def test_progress_forces_no_synchronization(session, monkeypatch):
    console, file = terminal()
    monkeypatch.setattr("windtunnel.train.progress.INTERVAL_S", 0.0)
    monkeypatch.setattr("windtunnel.train.trainer.Progress", lambda *given: Progress(*given, console=console))
    waits = []
    for progress in (False, True):
        before = sum(finding.times for finding in session.findings() if finding.code == "host-sync")
        trainer = Trainer(2, num_gpus=1, progress=progress, graph=False)
        trainer.fit(network(), housing(404), loss=nn.MSELoss(), optimizer=ADAM, batch_size=8)
        after = sum(finding.times for finding in session.findings() if finding.code == "host-sync")
        waits.append(after - before)
    assert "epoch 2/2" in file.getvalue()
    assert waits[0] == waits[1] <= 2


def test_progress_costs_little():
    """Between two drawings the loop only compares a clock: less than a microsecond."""
    progress = Progress(False, 1, None)
    begin = time.perf_counter()
    for _ in range(10_000):
        drawn = time.monotonic() >= progress.next_draw
    assert not drawn
    assert (time.perf_counter() - begin) / 10_000 < 5e-6
