"""The data and the split of the housing examples are scikit-learn's, number for number."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="module")
def housing():
    path = Path(__file__).parents[2] / "examples" / "housing.py"
    spec = importlib.util.spec_from_file_location("housing", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# mission 114
def test_split_picks_the_rows_that_scikit_learn_picks(housing):
    boston = housing.load_boston()
    assert (boston.data.shape, boston.target.shape) == ((506, 13), (506,))
    X_train, X_test, y_train, y_test = housing.train_test_split(
        boston.data, boston.target, test_size=0.2, random_state=0
    )
    assert [part.shape for part in (X_train, X_test, y_train, y_test)] == [(404, 13), (102, 13), (404,), (102,)]
    # Printed by scikit-learn 1.9's train_test_split on the same arrays.
    assert y_train[:5].tolist() == [26.7, 21.7, 22.0, 22.9, 10.4]
    assert y_test[:5].tolist() == [22.6, 50.0, 23.0, 8.3, 21.2]
    assert (X_train.sum(), y_train.sum()) == pytest.approx((366925.04639, 9135.2))


def test_rows_stay_with_their_targets(housing):
    rows = np.arange(10)
    train, test, train_again, test_again = housing.train_test_split(rows, rows * 2, test_size=0.25, random_state=1)
    assert (len(train), len(test)) == (7, 3)
    assert (train * 2 == train_again).all()
    assert (test * 2 == test_again).all()
