# make run      set everything up, fetch the built-in model once, start the app
# make test     set everything up and run every test
# make clients  set everything up and run the tests with programs of others (they are large)
# make check    format, lint, types, import rules
# make kernels  compile the GPU kernels for four GPUs, without one, and check the binaries
# make bench    run every benchmark; each ends in one line of JSON
# make bench-peers  install llama.cpp and vLLM apart (one is compiled, both are large) and run bench_cpu beside them

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
# Tests run on all cores, but a browser and a model want memory too.
WORKERS ?= 2

.PHONY: run test clients check kernels bench bench-peers screenshots clean

run: .venv/run.stamp
	$(BIN)/python app.py $(ARGS)

# In the order of the folders: by number of tests, files of few but long ones would be left to the end, for one worker.
test: .venv/dev.stamp
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

clients: .venv/clients.stamp
	$(BIN)/python -m pytest -m clients tests/clients $(ARGS)

check: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

kernels: .venv/run.stamp
	$(BIN)/python -m benchmarks.triton_aot

bench: .venv/dev.stamp
	@set -e; for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python -m benchmarks.$$(basename $$file .py); done

bench-peers: .venv/run.stamp .venv-peers/stamp
	$(BIN)/python -m benchmarks.bench_cpu --peers .venv-peers/bin/python $(ARGS)

screenshots: .venv/dev.stamp
	$(BIN)/python -m ui.screenshots $(ARGS)

clean:
	rm -rf .venv .venv-peers .pytest_cache .ruff_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Pageturn needs Python 3.11 or newer; $(PYTHON) is older. Try: make run PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

.venv/run.stamp: requirements.txt | .venv/bin/python
	$(BIN)/python -m pip install -r requirements.txt
	@touch $@

.venv/clients.stamp: requirements-clients.txt .venv/dev.stamp
	$(BIN)/python -m pip install --quiet -r requirements-clients.txt
	@touch $@

.venv-peers/stamp: requirements-peers.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet -r requirements-peers.txt
	# Text needs none of these, and builds for another torch stop the import of transformers.
	.venv-peers/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

.venv/dev.stamp: requirements.txt requirements-dev.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	@touch $@ .venv/run.stamp
