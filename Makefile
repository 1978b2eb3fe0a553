# `make help` lists what there is. `run` and `test` set up .venv by themselves and are quick the second time.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help run test test-long test-kill test-hostile test-cluster lint type check format docs site bench bench-gpu bench-table wheel image constraints clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "runner needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

run: $(READY) ## Train a ResNet-18 on real scans of digits; ARGS="model=resnet34 ..." changes what
	$(BIN)/python -m runner $(ARGS)

test: $(READY) ## Run the tests (10 minutes)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

test-long: $(READY) ## Run the tests that take longer, of many trainings in processes of their own (10 minutes)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m long $(ARGS)

test-kill: $(READY) ## Kill and resume runs 100 times, ranks that are started again 20 times (30 to 60 minutes)
	RUNNER_KILLS=100 $(BIN)/python -m pytest -s --timeout 3600 -m "not cluster" tests/integration/test_kill.py
	RUNNER_RESTARTS=20 $(BIN)/python -m pytest --timeout 3600 -m long tests/integration/test_launch.py -k ranks_are_killed

test-hostile: $(READY) ## Try 5,000 hostile inputs, each in a fork under a watch (30 minutes)
	RUNNER_HOSTILE_INPUTS=5000 $(BIN)/python -m pytest -n 2 -m "not cluster" tests/hostile $(ARGS)

test-cluster: $(READY) ## Test SLURM, MPI and two machines, played by this one (needs root; 8 minutes)
	tests/cluster/run $(BIN)/python -m pytest -m cluster tests/cluster $(ARGS)

lint: $(READY) ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(READY) ## Check types
	$(BIN)/mypy

check: lint type test test-long ## Everything that must hold before a commit

format: $(READY) ## Put the code into style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## Generate docs/config.md, commands.md and config.schema.json from the schema and conf/
	$(BIN)/python -m runner.config.reference
	$(BIN)/python .ci/write-commands

site: $(READY) ## Build the documentation site in site/; a dead link or anchor fails
	$(BIN)/python .ci/build-site

bench: $(READY) ## Measure side by side and record; PEERS="--timm FOLDER ..." compares with others
	$(BIN)/python benchmarks/start_up.py $(ARGS)
	$(BIN)/python benchmarks/loader.py $(ARGS)
	$(BIN)/python benchmarks/overhead.py $(ARGS)
	$(BIN)/python benchmarks/trainers.py --work small $(PEERS) $(ARGS)
	$(BIN)/python benchmarks/trainers.py --work photographs $(PEERS) $(ARGS)
	$(BIN)/python benchmarks/memory.py $(ARGS)
	$(BIN)/python benchmarks/allocator.py $(ARGS)
	$(BIN)/python benchmarks/decode_threads.py $(ARGS)
	$(BIN)/python benchmarks/digits_seeds.py
	$(BIN)/python benchmarks/one_channel.py $(ARGS)
	$(BIN)/python benchmarks/refusals.py
	$(BIN)/python benchmarks/checkpoint_stall.py
	$(BIN)/python benchmarks/resume_start.py
	$(BIN)/python benchmarks/predict_rate.py
	$(BIN)/python benchmarks/weight_difference.py
	$(BIN)/python benchmarks/gloo_efficiency.py
	$(BIN)/python benchmarks/sweep_kills.py
	for mode in pruning samplers overhead; do $(BIN)/python benchmarks/sweep_search.py $$mode $(ARGS) || exit 1; done
	$(BIN)/python benchmarks/table.py

bench-gpu: $(READY) ## The same for what needs a GPU
	$(BIN)/python benchmarks/gpu.py $(PEERS) $(ARGS)
	$(BIN)/python benchmarks/table.py

bench-table: $(READY) ## Write docs/benchmarks.md from benchmarks/results
	$(BIN)/python benchmarks/table.py

wheel: $(READY) ## Build the wheel, run it from an empty folder, list in dist/ what it brings (CycloneDX)
	.ci/check-wheel $(PYTHON)

image: ## Build the container image; ARGS="--build-arg DEVICE=cpu ..." (docs/containers.md)
	.ci/build-image $(ARGS)

constraints: $(READY) ## Write down the exact versions that are installed now, and the hashes of their files
	$(BIN)/python .ci/write-constraints

clean: ## Remove what was made here, but for run folders
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
