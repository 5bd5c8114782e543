# make run: serve MQTT on 127.0.0.1:1883; make check: at every save; make test: everything CI runs.
# Empty: tools/choose_python.sh selects an optimised build, if there is one.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
WORKERS ?= 6
# Compiled modules are kept even where the environment says otherwise: tests start hundreds of
# processes, each of which would compile all of foldmq.
export PYTHONDONTWRITEBYTECODE :=

# Compiled by mypyc where there is a C compiler; FOLDMQ_COMPILE=0 leaves them plain Python.
COMPILED_SOURCES := $(shell sed -n '/^compiled = \[/,/^\]/s/^ *"\(.*\)",/\1/p' pyproject.toml)

.PHONY: help install spark run cluster docs check test lint pages types pytest plain drills bench abuse fuzz release deb pictures clean java

help:
	@echo "make run     install the broker into $(VENV) and serve on 127.0.0.1:1883"
	@echo "make cluster run three nodes and three NATS servers on this machine, to try what happens"
	@echo "             when one is killed; Ctrl-C ends them"
	@echo "make spark   also install the requirements of foldmq spark (1.1 GB)"
	@echo "make check   at every save: generated pages, ruff, mypy and the tests that need no process and no Spark"
	@echo "make test    before a push: generated pages, ruff, mypy and all tests but the longest (make drills)"
	@echo "make drills  what make test leaves out: more and longer kills, stops, power cuts and damage"
	@echo "             (FOLDMQ_DRILL_ROUNDS, FOLDMQ_DRILL_SEED), a Spark cluster, 300 random runs (FOLDMQ_SEEDS),"
	@echo "             and property tests with 1,000 examples"
	@echo "make bench   compare foldmq with Mosquitto, NATS Server and its last release"
	@echo "             (ARGS='--rows pairs,cmd --rounds 3', ARGS=--write, ARGS=--help)"
	@echo "make abuse   attack foldmq while well-behaved clients use it (ARGS='filter-bombs --nice --busy', ARGS=--help)"
	@echo "make fuzz    test all parsers with random input (SECONDS=600 TARGETS='decoder tls')"
	@echo "make docs    build the documentation as a site into build/site"
	@echo "make release build the source distribution and the wheels into dist, and try each in a fresh environment"
	@echo "make deb     build the Debian package into dist"
	@echo "make pictures take the pictures of docs/pictures from a running broker (needs Chromium)"
	@echo "make clean   remove generated files and .venv; foldmq-data is kept"

# Stamps: pip runs again only when pyproject.toml changes.
install: $(VENV)/installed $(VENV)/compiled-modules
spark: $(VENV)/installed-spark $(VENV)/compiled-modules

$(VENV)/python:
	python=$$(sh tools/choose_python.sh $(PYTHON)) && $$python -m venv $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/python pyproject.toml
	$(PIP) install --editable .
	@touch $@

$(VENV)/installed-spark: $(VENV)/python pyproject.toml
	$(PIP) install --editable '.[spark]'
	@touch $(VENV)/installed $@

$(VENV)/installed-docs: $(VENV)/python pyproject.toml
	$(PIP) install --editable '.[docs]'
	@touch $(VENV)/installed $@

$(VENV)/installed-test: $(VENV)/python pyproject.toml
	$(PIP) install --editable '.[test]'
	@touch $(VENV)/installed $(VENV)/installed-spark $(VENV)/installed-docs $@

# The order only: installing other packages changes no compiled module.
$(VENV)/compiled-modules: $(COMPILED_SOURCES) pyproject.toml setup.py tools/compile_modules.py tools/compiled_finder.py \
    tools/mypyc.ini | $(VENV)/installed
	$(BIN)/python tools/compile_modules.py
	@touch $@

run: install
	$(BIN)/foldmq serve

cluster: install
	@$(BIN)/python tools/run_cluster.py

# Pictures are made by tools/pictures.py. A broken link, anchor or navigation fails the build.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html; with its search: $(BIN)/mkdocs serve"

# Types, and then the plain modules, are tested beside the tests that wait for processes and leave
# a processor idle. What fails ends none of the others.
test: java lint $(VENV)/compiled-modules
	@$(MAKE) --no-print-directory --jobs 2 --keep-going pytest types plain

# As foldmq does: the Java of JAVA_HOME, else the one in PATH.
java:
	@for java in $${JAVA_HOME:+"$$JAVA_HOME/bin/java"} java; do \
	   v=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
	   if [ "$${v:-0}" -ge 17 ]; then exit 0; fi; \
	 done; \
	 echo "make test needs Java 17 or newer for the Spark jobs, but none was found" >&2; \
	 echo "(on Debian: apt install openjdk-17-jre-headless)" >&2; exit 1

# At every save, under a minute: tests that need no process, no socket and no Spark.
check: lint types
	FOLDMQ_PLAIN=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal --hypothesis-profile few \
	  -m 'not slow and not system and not long' \
	  $(filter-out $(foreach folder,conformance conformance_mqtt5 e2e spark,tests/$(folder)/),$(wildcard tests/*/)) \
	  $(wildcard tests/test_*.py) $(ARGS)

lint: pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

pages: $(VENV)/installed-test
	$(BIN)/python tools/check_pages.py

types: $(VENV)/installed-test
	$(BIN)/mypy

# Else each worker compiles all tests at the same time.
$(VENV)/compiled: $(VENV)/installed-test
	$(BIN)/python -m pytest --collect-only -qqq >/dev/null || true  # the tests tell what is wrong
	@touch $@

# Most tests wait for brokers, so six run at a time. A worker runs whole files, which share
# fixtures, in the order of tests/harness/file_order.py.
pytest: $(VENV)/compiled
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --hypothesis-profile few -m 'not long' $(ARGS)

# These tests replace parts of compiled modules, or decode, encode and fold, where mypyc could make a
# difference: they run as plain Python, too. make check runs all pure tests so.
PLAIN_TESTS := $(addprefix tests/,actors simulation eventstore/format projections/state \
  protocol/mqtt protocol/mqtt5)

# With one process, since it takes what `pytest` leaves; and with a cache of its own, because each
# notes the tests that failed when it ends. A module that cannot be imported does not stop it.
plain: $(VENV)/compiled
	if [ -e $(VENV)/lib/python*/site-packages/foldmq_compiled.pth ]; then \
	  FOLDMQ_PLAIN=1 $(BIN)/python -m pytest --numprocesses 0 --hypothesis-profile few \
	    --continue-on-collection-errors -o cache_dir=.pytest_cache/plain -m '(plain or twice) and not long' $(PLAIN_TESTS) $(ARGS); fi

PROPERTY_TESTS := $(addprefix tests/,access actors cluster eventstore limits projections protocol transports \
  cli/test_top_rates.py spark/test_decoding.py spark/test_scan.py spark/test_turn_text.py)

# What make test leaves out. The numbers are those of faults of each drill and of random runs of the
# simulation; make test has fewer.
drills: export FOLDMQ_DRILL_ROUNDS ?= 20
drills: export FOLDMQ_SEEDS ?= 300
drills: $(VENV)/installed-test
	$(BIN)/python -m pytest -m 'long or drill or slow' $(ARGS)
	FOLDMQ_PLAIN=1 $(BIN)/python -m pytest tests/simulation -m plain $(ARGS)
	$(BIN)/python -m pytest $(PROPERTY_TESTS) --numprocesses 2 --hypothesis-profile many $(ARGS)

bench: spark
	$(BIN)/python bench/run.py $(ARGS)

abuse: install
	$(BIN)/python bench/abuse.py $(ARGS)

# Guided by coverage; new inputs are added to tests/fuzz/corpus.
SECONDS ?= 600
TARGETS ?= $(shell ls tests/fuzz | sed -n 's/^fuzz_\(.*\)\.py$$/\1/p')
fuzz: $(VENV)/installed-test
	$(PIP) install --editable '.[fuzz]'
	for target in $(TARGETS); do \
	  $(BIN)/python tests/fuzz/run.py $$target --seconds $(SECONDS) --keep || exit 1; \
	done

# Publishes nothing: .github/workflows/release.yml does, for a tag.
release: $(VENV)/installed-test
	$(BIN)/python tools/release.py

deb:
	sh deploy/debian/build.sh

# Pictures of the page, top, why and doctor; they change with each run.
pictures: $(VENV)/installed-test
	$(BIN)/python tools/pictures.py

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f bench/mqttload
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
