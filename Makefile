# Everything sets itself up: only Python 3.11+ and, for what runs Spark, Java 17+ must be there.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo demo-cdc test test-all lint bench clean

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=

# Images often forbid it; then each process that a test starts compiles 700 modules again.
unexport PYTHONDONTWRITEBYTECODE

ifeq ($(shell uname -s),Darwin)
INSTALL_JAVA := brew install openjdk@17
INSTALL_PYTHON := brew install python@3.12
# Homebrew keeps its Java off the PATH.
BREW_JAVA := $(firstword $(wildcard /opt/homebrew/opt/openjdk@17 /usr/local/opt/openjdk@17))
ifeq ($(JAVA_HOME),)
ifneq ($(BREW_JAVA),)
export JAVA_HOME := $(BREW_JAVA)
endif
endif
else
INSTALL_JAVA := sudo apt-get install -y openjdk-17-jre-headless
INSTALL_PYTHON := sudo apt-get install -y python3 python3-venv
endif

define FIND_PYTHON
for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
done; \
if [ -z "$$found" ]; then \
	echo "headrace needs Python 3.11 or newer; install it with: $(INSTALL_PYTHON)" >&2; exit 1; \
fi; \
if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
	echo "$$found cannot make virtual environments; install what it lacks with: sudo apt-get install -y $$("$$found" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" >&2; exit 1; \
fi
endef

define NEED_JAVA
java=java; if [ -n "$$JAVA_HOME" ]; then java="$$JAVA_HOME/bin/java"; fi; \
version=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9][0-9]*\).*/\1/p' | head -n 1); \
if [ "$${version:-0}" -lt 17 ]; then \
	echo "headrace needs Java 17 or newer (found: $${version:-none}); install it with: $(INSTALL_JAVA)" >&2; exit 1; \
fi
endef

help:
	@echo 'make demo      a year of flights through live views, in a few minutes (ARGS="--keep" stays up)'
	@echo 'make demo-cdc  PostgreSQL and Kafka to Iceberg through a view, with kills in between (ARGS="--kills 5")'
	@echo 'make test      the tests, without the long ones (ARGS="tests/sql" for some of them)'
	@echo 'make test-all  all tests'
	@echo 'make lint      ruff and mypy'
	@echo 'make bench     the benchmarks'
	@echo 'make clean     remove what the others have made'

$(READY): pyproject.toml
	@$(FIND_PYTHON); \
	[ -x $(BIN)/python ] || { echo "setting up $(VENV) ..."; "$$found" -m venv $(VENV); }
	@echo "installing packages into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,demo]'
	@touch $@

demo:
	@$(NEED_JAVA)
	@$(MAKE) --no-print-directory $(READY)
	@$(BIN)/headrace demo $(ARGS)

demo-cdc:
	@$(NEED_JAVA)
	@$(MAKE) --no-print-directory $(READY)
	@$(BIN)/python examples/cdc.py $(ARGS)

test:
	@$(NEED_JAVA)
	@$(MAKE) --no-print-directory $(READY)
	@$(BIN)/headrace prepare --missing
	@$(BIN)/python tests/registries.py
	@$(BIN)/python -m pytest -q -m 'not soak' -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-all:
	@$(NEED_JAVA)
	@$(MAKE) --no-print-directory $(READY)
	@$(BIN)/headrace prepare --missing
	@$(BIN)/python tests/registries.py
	@$(BIN)/python -m pytest -q --hypothesis-profile exploring $(ARGS)

lint: $(READY)
	@$(BIN)/ruff check --no-cache .
	@$(BIN)/ruff format --no-cache --check .
	@$(BIN)/mypy
	@found=$$($(BIN)/python -m pytest -q --collect-only 2>&1) || { echo "$$found" | tail -40; exit 1; }

bench:
	@$(NEED_JAVA)
	@$(MAKE) --no-print-directory $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	@for program in $$(grep -l __main__ benchmarks/*.py); do \
		echo "== $$program"; $(BIN)/python "$$program" $(ARGS) || exit 1; \
	done

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db
	rm -rf htmlcov .coverage derby.log
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
