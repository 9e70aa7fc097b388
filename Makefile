# Everything is a verb; `make` alone lists them. Nothing needs root, and .venv/ holds all that is installed.
#
# PYTHON=python3.12   the Python to make .venv with (3.10 or newer; default: found on PATH, or the one in use)
# TORCH=yes|no        fetch torch whatever its size, or do without (default: auto, see CONTRIBUTING.md)
# BACKEND=redis       the backend that the demo meets on
# ARGS="-k token"     more arguments for the program that the verb runs

SHELL := /bin/sh
VENV ?= .venv
BACKEND ?= redis
RUN := $(VENV)/bin/python
PYTEST := $(RUN) -m pytest
SPREAD := -n 2 --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help venv demo test check servers dist clean FORCE \
    test-pure test-simulated test-memory test-servers test-torchrun test-dist test-exhaustive simulate chaos bench

help: ## List the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The stamp is written last and names the choices that .venv was made with. Asking for another PYTHON or TORCH
# makes it anew; asking for none keeps them.
STAMP := $(VENV)/made
MADE_WITH := $(shell cat $(STAMP) 2>/dev/null)
made_with = $(patsubst $(1)=%,%,$(filter $(1)=%,$(MADE_WITH)))
PYTHON ?= $(call made_with,PYTHON)
TORCH ?= $(call made_with,TORCH)
ifneq ($(PYTHON) $(TORCH),$(call made_with,PYTHON) $(call made_with,TORCH))
$(STAMP): FORCE
endif

$(STAMP): scripts/venv.sh $(wildcard requirements/*.txt) pyproject.toml $(wildcard plugins/*/pyproject.toml)
	@PYTHON='$(PYTHON)' TORCH='$(TORCH)' sh scripts/venv.sh $(VENV)
	@echo 'PYTHON=$(PYTHON) TORCH=$(TORCH)' > $@

venv: $(STAMP) ## Make .venv: the core, the plugins, torch, and all that tests and checks need

demo: venv ## Train on three nodes, kill one, watch the others go on and a new one come in
	@$(RUN) examples/demo/run.py --backend $(BACKEND) $(ARGS)

test: check servers ## All that CI runs: the checks, then every ring but chaos and exhaustive
	$(PYTEST) $(SPREAD) -m "not chaos and not exhaustive" $(ARGS)

check: venv ## Lint, format, types, floors, texts; seconds
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(PYTEST) -q tests/repo

# The rings, cheapest first.
PURE := tests/api tests/hooks tests/machine tests/registry tests/repo tests/wire
SIMULATED := tests/simulated
MEMORY := tests/conformance tests/runtime tests/testing
SERVERS := tests/servers plugins
TORCHRUN := tests/torchrun tests/demo tests/examples
DIST := tests/dist

test-pure: venv ## Ring 1: functions and values
	$(PYTEST) $(wildcard $(PURE)) $(ARGS)

test-simulated: venv ## Ring 2: many nodes under one virtual clock, with faults by seed
	$(PYTEST) $(SPREAD) $(wildcard $(SIMULATED)) $(ARGS)

test-memory: venv ## Ring 3: sessions, handlers and the conformance laws against the backend in memory
	$(PYTEST) $(SPREAD) $(wildcard $(MEMORY)) $(ARGS)

test-servers: venv servers ## Ring 4: backends against real servers
	$(PYTEST) $(SPREAD) -m "not chaos and not exhaustive" $(wildcard $(SERVERS)) $(ARGS)

test-torchrun: venv ## Ring 5: real launchers and workers
	$(PYTEST) $(SPREAD) -m "not chaos" $(wildcard $(TORCHRUN)) $(ARGS)

test-dist: venv ## Ring 6: the distributions, built and installed into fresh environments
	$(PYTEST) $(wildcard $(DIST)) $(ARGS)

simulate: venv ## Apart: ten thousand schedules of faults, by seed
	$(RUN) -m rdzv_core.testing.simulate --schedules 10000 --processes 2 $(ARGS)

test-exhaustive: venv servers ## Apart: the laws for each server version, TLS, passwords, prefixes; a quarter of an hour
	$(PYTEST) $(SPREAD) -m exhaustive $(ARGS)

chaos: venv servers ## Apart: kill -9, SIGSTOP and cut connections, for minutes
	$(PYTEST) -m chaos --timeout 1800 $(ARGS)

bench: venv ## What a round costs and how soon it is released, beside the floor and torch; what imports cost
	$(RUN) benchmarks/handlers.py
	$(RUN) benchmarks/release.py
	$(RUN) benchmarks/beside_torch.py
	$(RUN) benchmarks/imports.py

servers:
	@sh scripts/servers.sh

dist: venv ## Build the distributions, core and plugins, from the tracked files into dist/
	@sh scripts/dist.sh $(RUN) dist

clean: ## Remove what was built and cached, and .venv
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name '*.egg-info' -prune -exec rm -rf {} +
	find . -name __pycache__ -prune -exec rm -rf {} +
