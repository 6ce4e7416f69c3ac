# make demo     sets up .venv and runs the main job to its end
# make test     sets up what tests need and runs the fast set
# make verify   the slow set: browser, cluster, long fault runs
# make check    style and types alone          make docs   regenerates what is generated
PYTHON ?= python3
BIN := .venv/bin
# Two workers: the smallest machine we test on has two cores.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo test verify check docs core dev clean

demo: core
	$(BIN)/waystation demo

test: dev check
	$(PYTEST)

verify: dev
	$(PYTHON) scripts/tools.py
	$(BIN)/python -m pytest -m slow -p no:xdist

check: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/generate.py --check

docs: dev
	$(BIN)/python scripts/generate.py

core:
	@$(PYTHON) scripts/setup.py core

dev:
	@$(PYTHON) scripts/setup.py dev

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
