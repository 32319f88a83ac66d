"""The Boston housing data and scikit-learn's train_test_split, without scikit-learn."""

from math import ceil
from pathlib import Path
from types import SimpleNamespace

import numpy as np

PATH = Path(__file__).parent / "data" / "boston.csv"


def load_boston():
    """Return the data set as scikit-learn's `load_boston` did: `.data` (506, 13) and `.target` (506,), float64."""
    table = np.loadtxt(PATH, delimiter=",", skiprows=1)
    names = PATH.read_text().split("\n", 1)[0].split(",")
    return SimpleNamespace(data=table[:, :-1], target=table[:, -1], feature_names=np.array(names[:-1]))


def train_test_split(*arrays, test_size=0.25, random_state=None):
    """Split arrays of equal length into random train and test rows, the same rows that scikit-learn picks.

    Scikit-learn permutes the row numbers with numpy's legacy generator, gives the first `ceil(rows * test_size)` to the
    test set and the rest to the training set. Returns train, test of the first array, then of the second, and so on.
    """
    rows = len(arrays[0])
    permutation = np.random.RandomState(random_state).permutation(rows)
    tests = ceil(rows * test_size)
    return [part for array in arrays for part in (array[permutation[tests:]], array[permutation[:tests]])]
