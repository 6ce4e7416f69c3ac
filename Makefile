# make demo     sets up .venv and runs the main job to its end
# make test     sets up what tests need and runs the fast set
# make verify   the slow set: browser, cluster, long fault runs
# make check    style and types alone          make docs   regenerates what is generated
PYTHON ?= python3
BIN := .venv/bin
# Four workers, also on two cores: a test waits for processes about half of its time.
PYTEST := $(BIN)/python -m pytest -n 4 --dist worksteal
# What runs Spark, agents or a whole installation is two at a time; what measures is alone.
HEAVY := tests/acapy tests/history tests/test_setup.py
ALONE := tests/bench tests/faults/test_power_loss.py
# The core of every part once more, on a store that is a cluster.
ON_CLUSTER := WAYSTATION_TEST_STORE=cluster $(PYTEST)
CORE := tests/channels tests/delivery tests/logs tests/pools tests/subscriptions tests/topics \
	tests/transactions $(addprefix tests/store/test_,leases.py membership.py format.py time_machine.py)

# The oldest supported Spark, in an environment of its own. This Spark leaves sockets open itself.
SPARK_OLDEST = .venv-spark40/bin/python -m pytest -p no:xdist -W ignore::ResourceWarning --timeout=300 \
	-m spark_oldest $(sort $(shell grep -rl --include=*.py mark.spark_oldest tests/history))

# Tests against a model, bounded by examples; the summary tells how many ran.
MODELS := $(patsubst %,tests/%/test_model.py,channels subscriptions topics transactions) \
	tests/pools/test_pool_model.py tests/transactions/test_archive_model.py

.PHONY: demo test verify check docs core dev clean

demo: core
	$(BIN)/waystation demo

test: dev check
	$(PYTEST) -m 'not slow and not spark'
	$(BIN)/python -m pytest -m 'spark and not slow' -p no:xdist

verify: dev
	$(PYTHON) scripts/tools.py
	$(PYTEST) -n 3 -m slow $(addprefix --ignore=,$(HEAVY) $(ALONE))
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow $(HEAVY)
	$(BIN)/python -m pytest -m slow -p no:xdist $(ALONE)
	$(SPARK_OLDEST)
	$(ON_CLUSTER) $(CORE)
	EXAMPLES=400 $(PYTEST) --timeout=900 tests/api/test_openapi.py $(MODELS)

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
