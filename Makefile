# make run: serve MQTT on 127.0.0.1:1883; make check: at every save; make test: everything CI runs.
# Empty: an optimised build where there is one, as tools/choose_python.sh finds it.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
WORKERS ?= 3

.PHONY: help install spark run check test lint types pytest drills bench abuse fuzz clean java

help:
	@echo "make run     install the broker into $(VENV) and serve on 127.0.0.1:1883"
	@echo "make spark   install what foldmq spark needs, too (1.1 GB)"
	@echo "make check   ruff, mypy and the tests that need no process and no Spark: at every save"
	@echo "make test    ruff, mypy and all tests"
	@echo "make drills  kill, stop, cut and damage for longer (FOLDMQ_DRILL_ROUNDS, FOLDMQ_DRILL_SEED)"
	@echo "make bench   compare foldmq with Mosquitto, NATS Server and its last release"
	@echo "             (ARGS='--rows pairs,cmd --rounds 3', ARGS=--write, ARGS=--help)"
	@echo "make abuse   attack foldmq beside good clients (ARGS='filter-bombs --nice --busy', ARGS=--help)"
	@echo "make fuzz    feed what reads bytes or files with inputs made up (SECONDS=600 TARGETS='decoder tls')"
	@echo "make clean   remove what these made; foldmq-data stays"

# The stamps make the second time quick: pip runs again only when pyproject.toml changes.
install: $(VENV)/installed
spark: $(VENV)/installed-spark

$(VENV)/python:
	python=$$(sh tools/choose_python.sh $(PYTHON)) && $$python -m venv $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/python pyproject.toml
	$(PIP) install --editable .
	@touch $@

$(VENV)/installed-spark: $(VENV)/python pyproject.toml
	$(PIP) install --editable '.[spark]'
	@touch $(VENV)/installed $@

$(VENV)/installed-test: $(VENV)/python pyproject.toml
	$(PIP) install --editable '.[test]'
	@touch $(VENV)/installed $(VENV)/installed-spark $@

run: install
	$(BIN)/foldmq serve

test: java lint types pytest

# As foldmq finds it: that of JAVA_HOME, else the one in PATH.
java:
	@for java in $${JAVA_HOME:+"$$JAVA_HOME/bin/java"} java; do \
	   v=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
	   if [ "$${v:-0}" -ge 17 ]; then exit 0; fi; \
	 done; \
	 echo "make test needs Java 17 or newer, which foldmq's Spark jobs run on, and finds none" >&2; \
	 echo "(on Debian: apt install openjdk-17-jre-headless)" >&2; exit 1

# At every save: what needs no process, no socket and no Spark, and takes less than a minute.
check: lint types
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --hypothesis-profile few \
	  -m 'not slow and not system' \
	  $(filter-out $(foreach folder,conformance e2e spark,tests/$(folder)/),$(wildcard tests/*/)) \
	  $(wildcard tests/test_*.py) $(ARGS)

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-test
	$(BIN)/mypy

# Most tests wait for brokers, so three at a time; whole files, as what they share is made once,
# in the order of tests/harness/order.py.
pytest: $(VENV)/installed-test
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(ARGS)

# How often each drill strikes, and the seed of when and where; make test strikes a few times.
drills: export FOLDMQ_DRILL_ROUNDS ?= 20
drills: export FOLDMQ_SEEDS ?= 300
drills: $(VENV)/installed-test
	$(BIN)/python -m pytest tests/e2e tests/simulation/test_chaos.py \
	  -m 'drill or slow' $(ARGS)

bench: spark
	$(BIN)/python bench/run.py $(ARGS)

abuse: install
	$(BIN)/python bench/abuse.py $(ARGS)

# Guided by coverage; what it finds that is new is added to tests/fuzz/corpus.
SECONDS ?= 600
TARGETS ?= $(shell ls tests/fuzz | sed -n 's/^fuzz_\(.*\)\.py$$/\1/p')
fuzz: $(VENV)/installed-test
	$(PIP) install --editable '.[fuzz]'
	for target in $(TARGETS); do \
	  $(BIN)/python tests/fuzz/run.py $$target --seconds $(SECONDS) --keep || exit 1; \
	done

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f bench/mqttload
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
