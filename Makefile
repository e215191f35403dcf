# The commands a newcomer needs. Each does all of its own set-up in .venv, and touches nothing else but the cache folder.
#
#   PYTHON=python3.12           the interpreter to build .venv with
#   TORCH_INDEX=URL             where torch comes from, when .venv is made (an index of CPU wheels is a tenth of the download)
#   TORCH=none                  do without torch; the sweep then measures mlock

PYTHON ?= python3
# A choice of one's own gets an environment of its own, so that it can be made, and taken back, at any time.
VENV   := .venv$(if $(filter-out python3,$(PYTHON)),-$(subst /,_,$(PYTHON)))$(if $(filter none,$(TORCH)),-without-torch)
BIN    := $(VENV)/bin
SLOT   := 154927104

export PIP_DISABLE_PIP_VERSION_CHECK = 1
export TORCH TORCH_INDEX

.PHONY: help sweep probe test test-slow test-gpu lint bench clean

help:
	@sed -n 's/^## //p' Makefile

## make sweep      measure what 1 to 64 slots of 154,927,104 B really cost on this machine
sweep: $(VENV)/ready
	$(BIN)/pinprobe sweep --slot-bytes $(SLOT)

## make probe      the proof for 16 slots: control, pinned, pinned again
probe: $(VENV)/ready
	$(BIN)/pinprobe probe --slot-bytes $(SLOT) --slots 16

## make test       the default tests, some minutes on 2 cores
# Two processes, a test file in one of them: more would take each other's memory.
test: $(VENV)/ready-to-test
	$(BIN)/python -m pytest -n 2 --dist loadfile

## make test-slow  the tests that take many gibibytes or minutes
test-slow: $(VENV)/ready-to-test
	$(BIN)/python -m pytest -m slow

## make test-gpu   the tests that need an accelerator
test-gpu: $(VENV)/ready-to-test
	$(BIN)/python -m pytest -m gpu

## make lint       ruff and mypy --strict
lint: $(VENV)/ready-to-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p pinprobe
	$(BIN)/mypy tests benchmarks examples

## make bench      the measured comparisons, each with its limit beside it
bench: $(VENV)/ready-to-test
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/walk_against_fresh.py
	$(BIN)/python benchmarks/ledger_overhead.py
	$(BIN)/python benchmarks/copy_out.py
	$(BIN)/python benchmarks/policies.py
	$(BIN)/python benchmarks/demand.py
	$(BIN)/python benchmarks/overflow.py

## make clean      remove the environments and what was built
clean:
	rm -rf .venv* build dist src/pinprobe.egg-info

$(VENV)/ready: setup.cfg pyproject.toml constraints.txt setup_venv.py
	$(PYTHON) setup_venv.py $(VENV)
	@touch $@

$(VENV)/ready-to-test: $(VENV)/ready
	$(PYTHON) setup_venv.py $(VENV) test
	@touch $@
