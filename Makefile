# Everything lives in .venv; a stamp there remembers what is installed, so a second run starts at once.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
WORKERS ?= 2
BIN := .venv/bin

.PHONY: help demo test lint types tests docs clean

help:
	@echo "make demo   handwritten digits: check, train, evaluate, predict, report"
	@echo "make test   lint, types and all tests"
	@echo "make docs   write docs/commands.md from the commands, and the table of docs/scale.md"
	@echo "make clean  remove .venv and caches"

demo: .venv/installed-demo
	@$(BIN)/python examples/demo.py

test: lint types tests

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed-test
	$(BIN)/mypy

# One thread a worker: tests are many and small, and threads of several workers on the same cores slow each other down.
# Compiled modules are kept even where the environment says otherwise: the suite starts hundreds of processes.
tests: .venv/installed-test
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist worksteal

docs: .venv/installed-test
	$(BIN)/python docs/write_commands.py
	$(BIN)/python docs/write_training_costs.py

.venv/installed-%: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv .pytest_cache .hypothesis .mypy_cache .ruff_cache
