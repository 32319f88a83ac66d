# Every target works on a fresh machine that has Python 3.11 or newer and make: the first one creates the environment.
# Nothing needs root or a system package. Variables: PYTHON (which Python), TORCH (another version of torch, in an
# environment of its own), JOBS (test processes), ARGS (passed on to the command), NEWEST (any value: the libraries of the
# other frameworks and of compilers at the newest versions that pip finds, in environments of their own).

TORCH ?=
NEWEST ?=
export NEWEST
# One more than two cores: a sixth of the time a test waits, for a clock, a disk or a process that ends.
JOBS ?= 3
ARGS ?=
OF := $(if $(NEWEST),newest-)
VENV := .venv$(if $(TORCH),-torch-$(TORCH))
RUN := $(VENV)/bin/python
EXTRAS := torch,report,dev,integrations
OLDEST_TORCH := 2.6.0
CUDA_TORCH := 2.14.1
HARDWARE_PYTHON ?=

# What an environment holds is compiled when it is first imported (tools/environment): Python has to keep that.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test-jax test-tensorflow environment-jax environment-tensorflow $(shell sed -n 's/^\([a-z][a-z-]*\):.*/\1/p' $(MAKEFILE_LIST))

help:
	@echo "make demo             train the documents' multi-GPU program on two emulated V100, with a report in runs/demo.html"
	@echo "make test             the tests that a change must pass: 5 minutes on two cores"
	@echo "make test-long        those of several processes and whole models, which a change must pass too"
	@echo "make check            ruff and mypy"
	@echo "make docs             the documentation, in site/"
	@echo "make help-all         every other target: more tests, benchmarks, comparisons, fits"

help-all: help
	@echo "make format           what ruff can mend by itself"
	@echo "make test-all         every test, on every version of torch that is claimed; takes long"
	@echo "make test-weekly     more of the same kinds, which a change need not wait for"
	@echo "make test-kill        trainings killed at any moment, 510 times: what is kept continues"
	@echo "make test-signals     200 signals in the middle of operators, whose handlers raise or use the GPU: a few minutes"
	@echo "make test-threads     threads on emulated GPUs at length, and 500 asynchronous checkpoints under four of them"
	@echo "make test-oldest      the tests on torch $(OLDEST_TORCH), in an environment of its own"
	@echo "make test-newest      the tests on the newest torch that pip finds, in an environment of its own"
	@echo "make test-cuda-wheel  the tests on torch $(CUDA_TORCH) as pip gives it (CUDA build on Linux: several GB), no driver needed"
	@echo "make test-jax, make test-tensorflow, make test-mxnet: the other frameworks, in environments of their own"
	@echo "make test-plan-backends  plans on a local Dask cluster and a local Ray, in an environment of their own"
	@echo "make test-compile     Triton kernels and compiled programs, in an environment with Triton (1 GB)"
	@echo "make test-xla         jitted JAX functions compiled by XLA for emulated GPUs, in an environment with that compiler"
	@echo "make environments     what the tests of other frameworks and of compilers need, installed beforehand"
	@echo "make test-together    PyTorch, JAX and TensorFlow in one process (3 GB)"
	@echo "make test-libraries   bitsandbytes, torchao and transformers on emulated GPUs (1 GB)"
	@echo "make bench            what emulation costs, as ratios to plain CPU, and what the comparison of ranks costs"
	@echo "make bench-compiled   what compiled programs cost beside PyTorch's own share of it; half an hour (ARGS=\"--only Trainer\")"
	@echo "make bench-cuda       CUDA C++ kernels beside PyTorch's operations on one core, with checks and without; minutes"
	@echo "make walks            the functions that an operation walks through in steady state, and changes from file to file"
	@echo "make bench-operators  operators emulated a second, and predicted time by their number"
	@echo "make bench-cluster    clusters of 8 to 4,096 GPUs that a few processes play: their processor time and memory; minutes"
	@echo "make bench-long       memory of runs of up to five million operators and of their reports, and the reports' time; minutes"
	@echo "make bench-report     size of the HTML report of 100,000 operations, and how long it takes to open"
	@echo "make bench-memory     peak memory of ResNet-50, bert-large and GPT-2, with what it is made of"
	@echo "make snapshots        memory snapshots that others recorded on real GPUs, replayed"
	@echo "make calibrate        fit every constant of the cost model anew on the published timings, cross-validated; a few minutes"
	@echo "make accuracy         predicted against published training throughput"
	@echo "make accuracy-plan    plans against published runs: whether their batches fit, and the ranking of GPUs; takes long"
	@echo "make accuracy-transformers, make accuracy-images: the same of models that others timed whole, in FP32 and of timm"
	@echo "make accuracy-languages: trainings of language models on A100 and H100 that hold their load"
	@echo "make accuracy-clusters: trainings of language models on 2 to 512 GPUs, each as a cluster; an hour"
	@echo "make accuracy-cuda-kernels: kernels in CUDA C++ that others timed, from their recordings"
	@echo "make accuracy-compiled: timm's models eager and compiled, throughput and speed-up"
	@echo "make differential     the Trainer against a hand-written loop on 1,000 random configurations, and crashes after every step; half an hour"
	@echo "make bench-train      the Trainer beside a bare loop, Lightning, accelerate, Keras and skorch"
	@echo "make programs         other people's programs (Hugging Face, accelerate, Lightning, timm, ...) on emulated GPUs; a quarter of an hour, 2 GB"
	@echo "make programs-compiled   those of them that torch.compile compiles, beside the CPU; ten minutes, 1 GB"
	@echo "make conformance      PyTorch $(OLDEST_TORCH)'s own CUDA tests on two emulated GPUs; takes half an hour to an hour; fetches them first"
	@echo "make advice           every advice that a patch can follow is followed, and held to what was promised; an hour or more"
	@echo "make behaviour        what thirty programs do, recorded before a change of structure and compared after it (ARGS)"
	@echo "make exam             other people's programs (KernelBench) beside published times: CHECKOUT=a clone of it (ARGS)"
	@echo "make exam-pipelines   pipelines of diffusers beside published seconds and peaks of memory; two minutes"
	@echo "make hardware         what a real NVIDIA GPU says to what is emulated: 40 minutes; HARDWARE_PYTHON=a Python with CUDA's torch"
	@echo "make folding          clusters by a few processes beside a process a rank, disturbed ranks, and 28 kinds that differ; half an hour"
	@echo "make faults           random faults in a training of two ranks, beside an oracle; a quarter of an hour (ARGS=\"--seed 7\")"
	@echo "make determinism      thirty programs twice: output, traces and findings are the same bytes; ten minutes"
	@echo "make fuzz             damaged and hostile files of every format that is read: ten minutes, seeded (ARGS=\"--seed 7\")"
	@echo "make race-oracle      1,000 random programs of several streams, with free and reuse, beside an oracle; five minutes"
	@echo "make products         products in 8 and 4 bits on 200 random shapes beside their definition; ten minutes"
	@echo "make differential-operators  every operator of PyTorch's database, and random programs, beside plain PyTorch; hours"
	@echo "make differential-kernels   400 random Triton kernels, half of them with a fault; a minute"
	@echo "make differential-cuda      2,000 random CUDA C++ kernels, half of them with a fault, beside an interpreter; an hour"
	@echo "make differential-compiled  60 random functions compiled by torch.compile, beside the same uncompiled; a few minutes"
	@echo "make differential-nodata    300 random small trainings with data, beside the same without: kernels, bytes, peaks, times; five minutes"
	@echo "make versions         a part of the tests on other versions, ARGS=their Pythons: the table in docs/reliability.md"
	@echo "make host-loops       49 loops bound by data, Python, a disk or the GPU: the report's verdict; a quarter of an hour"
	@echo "make pages            what is generated in docs/: the checks' pages, the figures"
	@echo "make experiment-pages the experiments' pages of the documentation, from runs of them; takes long"
	@echo "make experiments      every experiment in its small form, on two emulated V100"
	@echo "make dist             sdist and wheel, and the wheel at work in an empty environment"
	@echo "make clean            remove environments and everything built"

environment:
	@PYTHON="$(PYTHON)" tools/environment $(VENV) $(EXTRAS) $(TORCH)

demo: environment
	$(RUN) -m windtunnel.demo $(ARGS)

# Each prints its slowest tests: one that comes to take long is made cheaper, or marked `long`. A process takes whole
# files, in which many tests read what one run says, in the order of tests/conftest.py.
PYTEST := -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -q --durations 20 --durations-min 5

test: environment
	$(RUN) $(PYTEST) -m "not long and not weekly" $(ARGS)

test-long: environment
	$(RUN) $(PYTEST) -m "long and not weekly" $(ARGS)

test-weekly: environment
	$(RUN) $(PYTEST) -m weekly $(ARGS)

test-all: check test test-long test-weekly dist experiments experiment-pages docs test-kill test-signals test-threads test-jax test-tensorflow test-mxnet test-compile test-cuda test-xla test-plan-backends test-together test-libraries test-oldest test-cuda-wheel

# Each other framework has an environment of its own: they pin one another's dependencies.
test-jax test-tensorflow: test-%: environment-%
	.venv-$(OF)$*/bin/python -m pytest -q -n $(JOBS) tests/on_$* tests/frameworks $(ARGS)

# Triton is of the version that torch's CUDA wheels of constraints.txt require.
test-compile: environment-compile
	.venv-$(OF)compile/bin/python -m pytest -q -n $(JOBS) tests/on_triton tests/on_compile $(ARGS)

# Kernels in CUDA C++: clang and llvmlite.
test-cuda: environment-cuda
	.venv-$(OF)cuda/bin/python -m pytest -q -n $(JOBS) tests/on_cuda tests/ptx $(ARGS)

# XLA's GPU compiler (no GPU or driver needed), of jax's version.
test-xla: environment-xla
	.venv-$(OF)xla/bin/python -m pytest -q -n $(JOBS) tests/on_xla $(ARGS)

test-plan-backends:
	@PYTHON="$(PYTHON)" tools/environment .venv-$(OF)clusters torch,dask,ray,dev
	.venv-$(OF)clusters/bin/python -m pytest -q tests/on_clusters $(ARGS)

test-mxnet: environment-mxnet
	.venv-$(OF)mxnet/bin/python -m pytest -q -n $(JOBS) tests/on_mxnet tests/frameworks $(ARGS)

# What the tests of other frameworks and of compilers need, so that it can be installed while other tests run.
environments: environment-jax environment-tensorflow environment-mxnet environment-compile environment-cuda environment-xla

environment-jax environment-tensorflow: environment-%:
	@PYTHON="$(PYTHON)" tools/environment .venv-$(OF)$* $*,dev

environment-mxnet:
	@PYTHON="$(or $(PYTHON),python3.11 python3)" tools/environment .venv-$(OF)mxnet mxnet,dev

environment-compile:
	@PYTHON="$(PYTHON)" tools/environment .venv-$(OF)compile torch,report,compile,cuda,dev

environment-cuda:
	@PYTHON="$(PYTHON)" tools/environment .venv-$(OF)cuda torch,report,cuda,cuda-libraries,dev

environment-xla:
	@PYTHON="$(PYTHON)" tools/environment .venv-$(OF)xla jax,xla,dev

test-together:
	@PYTHON="$(PYTHON)" tools/environment .venv-$(OF)together all,dev
	.venv-$(OF)together/bin/python -m pytest -q tests/together $(ARGS)

# Installed libraries whose kernels are CUDA's: bitsandbytes, torchao, and transformers with both.
test-libraries:
	@PYTHON="$(PYTHON)" tools/environment .venv-$(OF)libraries torch,report,compile,cuda,libraries,dev
	.venv-$(OF)libraries/bin/python -m pytest -q tests/on_libraries $(ARGS)

test-kill: environment
	$(RUN) tests/train/kill.py --kills 200
	$(RUN) tests/train/kill.py --kills 60 --back 0.3
	$(RUN) tests/train/kill.py --kills 60 --ranks 2
	$(RUN) tests/train/kill.py --kills 60 --writing --emulated
	$(RUN) tests/train/kill.py --kills 30 --ranks 2,3
	$(RUN) tests/train/kill.py --kills 100 --varied

# ARGS="--signals 1000 --seed 7"
test-signals: environment
	OMP_NUM_THREADS=1 $(RUN) -W ignore tests/seam/signals.py $(ARGS)

test-threads: environment
	$(RUN) tests/seam/threads.py $(ARGS)

test-oldest:
	$(MAKE) test TORCH=$(OLDEST_TORCH)

test-newest:
	$(MAKE) test TORCH=newest

test-cuda-wheel:
	$(MAKE) test TORCH=$(CUDA_TORCH)

check: environment
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

format: environment
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

# ARGS="--seed 7 --one ddp/17" runs one configuration of a seed again.
differential: environment
	$(RUN) -m tools.differential trainer $(ARGS)

bench: environment
	$(RUN) -m benchmarks.bench_overhead $(ARGS)
	$(RUN) -W ignore -m benchmarks.bench_ranks

bench-train:
	@PYTHON="$(PYTHON)" tools/environment .venv-bench torch,report,bench $(TORCH)
	.venv-bench/bin/python -m benchmarks.bench_train $(ARGS)

bench-compiled: environment-compile
	.venv-$(OF)compile/bin/python -m benchmarks.bench_compiled $(ARGS)

bench-cuda: environment-cuda
	OMP_NUM_THREADS=1 .venv-$(OF)cuda/bin/python -W ignore -m benchmarks.bench_cuda_kernels $(ARGS)

bench-operators: environment
	$(RUN) -m benchmarks.bench_operators $(ARGS)

walks: environment
	$(RUN) -m tools.walks

bench-cluster: environment
	$(RUN) -m benchmarks.bench_cluster $(ARGS)

bench-long: environment
	$(RUN) -m benchmarks.bench_long $(ARGS)

bench-report: environment
	$(RUN) -m benchmarks.bench_report $(ARGS)

calibrate: environment
	OMP_NUM_THREADS=1 $(RUN) -m tools.calibration $(ARGS)

accuracy: environment
	$(RUN) -m tools.compare throughput $(ARGS)

# ARGS="bert-large" plans the models whose names begin so.
accuracy-plan: environment
	$(RUN) -m tools.compare plans $(ARGS)

accuracy-transformers: environment
	$(RUN) -m tools.compare transformers $(ARGS)

accuracy-languages: environment
	$(RUN) -m tools.compare languages $(ARGS)

# Each row is a cluster of its own: an hour for all. ARGS="MPT-7b" or ARGS="--most 20" takes fewer.
accuracy-clusters: environment
	$(RUN) -m tools.compare clusters $(ARGS)

# ARGS="relu --verbose" prints a line for each row; ARGS=--record writes the figures. python -m tools.corpus.custom_kernels runs the kernels again.
accuracy-cuda-kernels: environment
	$(RUN) -m tools.compare custom_kernels $(ARGS)

# timm without what it depends on: of torchvision only the Python part is needed. ARGS="--most 600" takes all rows.
accuracy-images:
	@PYTHON="$(PYTHON)" tools/environment .venv-images torch,report
	.venv-images/bin/python -m pip install --quiet --no-deps timm==1.0.31 torchvision==0.28.0 huggingface_hub==0.36.0 safetensors pyyaml tqdm packaging pillow
	.venv-images/bin/python -m tools.compare images $(ARGS)

# Inductor's kernels need Triton, too. ARGS="--most 0" prices the recorded rows alone, --dashboard runs training steps.
accuracy-compiled:
	@PYTHON="$(PYTHON)" tools/environment .venv-compiled-images torch,report,compile
	.venv-compiled-images/bin/python -m pip install --quiet --no-deps timm==1.0.31 torchvision==0.28.0 huggingface_hub==0.36.0 safetensors pyyaml tqdm packaging pillow
	.venv-compiled-images/bin/python -m tools.compare compiled $(ARGS)

bench-memory: environment
	$(RUN) -m benchmarks.bench_memory $(ARGS)

# ARGS="--snapshots DIR" replays what git clones in DIR hold, --trainings runs a recorded program again; docs/memory.md.
snapshots: environment
	$(RUN) -m tools.conformance.snapshots $(ARGS)

# What only a git checkout gives runs with ARGS="--sources DIR --clone"; see docs/programs.md.
programs:
	@PYTHON="$(PYTHON)" tools/environment .venv-programs$(if $(TORCH),-torch-$(TORCH)) torch,report $(TORCH)
	.venv-programs$(if $(TORCH),-torch-$(TORCH))/bin/python -m tools.programs.programs $(ARGS)

# Programs that compile, with Triton (1 GB more); those that a git checkout gives need ARGS="--sources DIR --clone", too.
programs-compiled:
	@PYTHON="$(PYTHON)" tools/environment .venv-programs-compiled torch,report,compile
	.venv-programs-compiled/bin/python -m tools.programs.programs --only ", compiled" $(ARGS)

# PyTorch's tests fit the torch that they were released with. ARGS="--list" runs the chosen ones only, ARGS="--suites" those
# beyond the CUDA files.
conformance:
	@PYTHON="$(PYTHON)" tools/environment .venv-torch-$(OLDEST_TORCH) torch,report,dev $(OLDEST_TORCH)
	@PYTHON="$(PYTHON)" tools/environment .venv-torch-$(OLDEST_TORCH) conformance $(OLDEST_TORCH)
	.venv-torch-$(OLDEST_TORCH)/bin/python -m tools.conformance $(ARGS)

# ARGS="--only threads" runs some.
determinism: environment
	$(RUN) -m tools.behaviour twice $(ARGS)

# ARGS="--only encoder" takes the programs whose names hold that. Programs of others need what `make programs` installs.
advice:
	@PYTHON="$(PYTHON)" tools/environment .venv-programs torch,report
	.venv-programs/bin/python -m tools.advice $(ARGS)

# ARGS="record FOLDER" before, ARGS="compare FOLDER" after.
behaviour: environment
	$(RUN) -m tools.behaviour $(ARGS)

# ARGS="--stand-in A100" runs it without a GPU; see docs/hardware.md. An environment's torch counts when it has CUDA.
hardware:
	@PYTHON="$(PYTHON)" HARDWARE_PYTHON="$(HARDWARE_PYTHON)" tools/hardware-python $(CUDA_TORCH) -m tools.hardware $(ARGS)

# ARGS="--only 'linalg.*'" compares some operators, ARGS="--programs 0:200" some random programs alone.
differential-operators: environment
	OMP_NUM_THREADS=1 $(RUN) -W ignore -m tools.differential operators $(ARGS)

# ARGS="--functions 7" compiles the function of one seed again.
differential-compiled: environment-compile
	OMP_NUM_THREADS=1 .venv-$(OF)compile/bin/python -W ignore -m tools.differential compiled $(ARGS)

# ARGS="--program 7" compares the program of one seed again.
differential-nodata: environment
	OMP_NUM_THREADS=1 $(RUN) -W ignore -m tools.differential nodata $(ARGS)

# ARGS: the Pythons of other environments, with a framework and pytest; without them this environment's, TORCH=newest's say.
versions: environment
	$(RUN) -m tools.docs.versions $(or $(ARGS),$(RUN))

host-loops: environment
	HOST_LOOPS=all $(RUN) -m pytest -q -m long tests/seam/test_host_work.py $(ARGS)

# ARGS="--kernels 7" judges the kernel of one seed again.
differential-kernels: environment-compile
	OMP_NUM_THREADS=1 .venv-$(OF)compile/bin/python -W ignore -m tools.differential kernels $(ARGS)

# ARGS="--kernels 7" judges the kernel of one seed again.
differential-cuda: environment-cuda
	OMP_NUM_THREADS=1 .venv-$(OF)cuda/bin/python -W ignore -m tools.differential cuda $(ARGS)

# ARGS="--seed 7 --one trace/112" writes one file again and reads it.
fuzz: environment
	$(RUN) -m tools.fuzz $(ARGS)

# ARGS="-k integers" compares some of them alone.
products: environment
	PRODUCT_SEEDS=200 $(RUN) -m pytest -q tests/seam/test_scaled_products.py $(ARGS)

# ARGS="--seed 7 --one 112" runs one program of a seed again, with its text.
race-oracle: environment
	OMP_NUM_THREADS=1 $(RUN) -m tools.races $(ARGS)

# ARGS is programs; --ranks, --gpu and --checked go before them.
folding: environment
	OMP_NUM_THREADS=1 $(RUN) -m tools.folding.exact $(or $(ARGS),$(wildcard tests/ranks/programs/*_valid.py))
	OMP_NUM_THREADS=1 $(RUN) -m tools.folding.unlike
	OMP_NUM_THREADS=1 $(RUN) -m tools.folding.disturbed tests/ranks/programs/tensor_parallel_valid.py tests/ranks/programs/fully_sharded_valid.py

# ARGS="--seed 7 --one 112" runs one schedule of a seed again.
faults: environment
	$(RUN) -m tools.faults $(ARGS)

# The checks' pages from their docstrings, and the figures in docs/figures/ into the pages that show them.
pages: environment
	$(RUN) -m tools.docs.check_pages
	$(RUN) -m tools.docs.library_pages
	$(RUN) -m tools.docs.agent_pages
	$(RUN) -m tools.docs.figures

# Programs that are held back to judge the clock are left out, unless ARGS=--all.
exam: environment
	$(RUN) -m tools.exam $(CHECKOUT) $(ARGS)

# diffusers of the days when its pipelines were timed, without what a program of ours does not use.
exam-pipelines:
	@PYTHON="$(PYTHON)" tools/environment .venv-pipelines torch,report
	.venv-pipelines/bin/python -m pip install --quiet --no-deps diffusers==0.30.3 huggingface_hub==0.25.2 safetensors requests urllib3 idna certifi charset_normalizer regex tqdm pyyaml importlib_metadata zipp packaging filelock
	.venv-pipelines/bin/python -m tools.exam.pipelines $(ARGS)

# What changes/ says of the next release.
changelog: environment
	$(RUN) -m tools.docs.changelog

docs: environment
	@PYTHON="$(PYTHON)" tools/environment $(VENV) docs $(TORCH)
	$(RUN) -m tools.docs.mission_table
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

# In an environment of its own, which has nothing but what builds; the one that the wheel is tried in is temporary.
dist:
	@[ -x .venv-build/bin/python ] || $(or $(PYTHON),python3) -m venv .venv-build
	@.venv-build/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt build
	.venv-build/bin/python -m tools.distribution $(ARGS)

# The experiments' pages with their numbers, of which those are run again that something has changed for; takes long.
experiment-pages: environment
	@PYTHON="$(PYTHON)" tools/environment $(VENV) docs $(TORCH)
	$(RUN) -m tools.docs.experiment_pages $(ARGS)

experiments: environment
	@for name in $$($(VENV)/bin/windtunnel experiment list | cut -d' ' -f1); do \
		$(VENV)/bin/windtunnel experiment $$name --gpus 2xV100 --small $(ARGS) || exit; echo; done

clean:
	rm -rf .venv .venv-* site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis logs runs
