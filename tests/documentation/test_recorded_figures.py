"""Commands that measure write the rows of their figures, from outcomes as they come."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from tools.calibration import calibrate_images
from tools.corpus import clusters
from tools.corpus.outcomes import Outcome, error_figures, ranking
from tools.docs import figures


def test_errors_are_those_of_times_and_the_band_counts_where_all_have_one() -> None:
    some = [Outcome("a", "g", 1.1, 1.0, 0.2), Outcome("b", "g", 1.8, 2.0, 0.05), Outcome("c", "g", 3.0, 3.0, 0.1)]
    assert error_figures(some) == {"number": 3, "median": 10.0, "p90": 10.0, "bias": 0.0, "inside": 67}
    assert "inside" not in error_figures([*some, Outcome("d", "g", 1.0, 1.0, None)])
    assert ranking(some) == {"tau": 1.0}


def test_rows_of_clusters_are_those_of_the_file() -> None:
    found = [(row, Outcome(row.model, f"{row.source}, {row.gpu}", row.step_ms, row.step_ms, 0.1))
             for row in clusters.rows() if row.stages <= clusters.MOST_STAGES]  # fmt: skip
    made, known = clusters.figures_of(found), figures.load("cluster-trainings")["rows"]
    assert made.keys() == known.keys()
    for name, row in made.items():
        assert (row["number"], row["gpus"], row["median"]) == (known[name]["number"], known[name]["gpus"], 0.0)
    assert made["vtrain"]["tau"] == 1.0


def test_rows_of_images_are_those_of_the_file() -> None:
    some = calibrate_images.recordings()
    ms = np.array([one.ms for one in some])
    steps = SimpleNamespace(recordings=some, ms=ms)
    made = calibrate_images.figures_of(calibrate_images.Found(steps, {}, ms, 1.25 * ms))
    known = figures.load("models")["rows"]
    assert made.keys() <= known.keys()
    for name, row in made.items():
        assert row["number"] == known[name]["number"]
        assert np.ravel(row["median"]) == pytest.approx(25.0 if name.startswith("gpu-") else 0.0)
        assert isinstance(row["median"], list) == isinstance(known[name]["median"], list)
