# The tests of the other frameworks, each in an environment of its own at the versions of constraints-<framework>.txt.
# MXNet 1.9 is retired: it needs Python 3.11 or older (here exactly 3.11, which understudy needs) and numpy 1.23.

PYTHON_JAX ?= python3.11
PYTHON_TENSORFLOW ?= python3.11
PYTHON_MXNET ?= python3.11
TOOLS := pytest pillow

.PHONY: test-jax test-tensorflow test-mxnet smoke-jax smoke-tensorflow smoke-mxnet

.venv-jax/.installed: constraints-jax.txt pyproject.toml
	$(PYTHON_JAX) -m venv .venv-jax
	.venv-jax/bin/python -m pip install -q --disable-pip-version-check -c $< -e ".[jax]" $(TOOLS)
	touch $@

# tf_keras (Keras 2, which the documents had) would bring the large CUDA build of tensorflow along.
.venv-tensorflow/.installed: constraints-tensorflow.txt pyproject.toml
	$(PYTHON_TENSORFLOW) -m venv .venv-tensorflow
	.venv-tensorflow/bin/python -m pip install -q --disable-pip-version-check -c $< -e ".[tensorflow]" $(TOOLS)
	.venv-tensorflow/bin/python -m pip install -q --disable-pip-version-check -c $< --no-deps tf_keras
	touch $@

.venv-mxnet/.installed: constraints-mxnet.txt pyproject.toml
	$(PYTHON_MXNET) -m venv .venv-mxnet
	.venv-mxnet/bin/python -m pip install -q --disable-pip-version-check -c $< -e . mxnet numpy $(TOOLS)
	touch $@

test-jax test-tensorflow test-mxnet: test-%: .venv-%/.installed
	OMP_NUM_THREADS=2 .venv-$*/bin/python -m pytest -q tests/$* $(ARGS)

# A minute of each, for every change: one listing of the documents.
smoke-jax smoke-tensorflow smoke-mxnet: smoke-%: .venv-%/.installed
	OMP_NUM_THREADS=2 .venv-$*/bin/python -m pytest -q tests/$*/test_listings.py $(ARGS)
