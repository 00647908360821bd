# kinst: make trace shows it at work, make test checks it.  The first run of either sets up.
SHELL := /bin/bash
PYTHON := .venv/bin/python
# Two at once: while one test waits for a guest another can run.
PYTEST := $(PYTHON) -m pytest -n 2 --dist loadfile --durations=15 -o faulthandler_timeout=300
# A test that hangs fails, and the others go on.  Of those that are not slow the longest takes some
# three minutes.
DEADLINE := --timeout=900
# A checkout that cannot be written to is checked without caches.
ifneq ($(shell test -w . && echo yes),yes)
export RUFF_NO_CACHE := true
export MYPY_CACHE_DIR := /dev/null
PYTEST += -p no:cacheprovider
else
# Each of the thousand Python processes of a run would compile all of kinst anew.
unexport PYTHONDONTWRITEBYTECODE
endif
# What make test runs, and what make test-all runs besides.
FIRST := 'not slow and not full and (not vm or main_job)'
REST := 'not slow and (full or drawn or vm and not main_job)'

.PHONY: help setup setup-test setup-all trace test test-unit test-all test-rest test-release \
	test-fresh lint docs bench lock clean

help:
	@echo 'make trace      set up if need be, then trace a real kernel in a VM, twice'
	@echo 'make setup      packages, .venv with kinst in it, the kernel to trace (once, 310 MB)'
	@echo 'make test       lint, unit tests, the main job in a VM (10 minutes, 650 MB once)'
	@echo 'make test-unit  only the tests that boot no kernel'
	@echo 'make test-all   lint and every test but the slow ones, as CI runs them (2 GB once)'
	@echo 'make test-release  every test, the slow ones too, with new random seeds (hours)'
	@echo 'make test-fresh make trace and make test in a new Debian 12 (root, 7 GB, an hour)'
	@echo 'make lint       ruff and mypy --strict'
	@echo 'make docs       renew the pages that are written from the source'
	@echo 'make bench      what a probe costs, beside what its peers cost'
	@echo 'make lock       new versions into requirements.lock'
	@echo 'make clean      delete .venv and all caches here (~/.cache/kinst stays)'

setup:
	@setup/setup.sh

setup-test:
	@setup/setup.sh test

# And the other kernels, machines and tools that make test does without.
setup-all:
	@setup/setup.sh all

trace: setup
	@setup/trace.sh

lint: setup
	@echo 'lint: ruff check, ruff format, mypy --strict'
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy --strict kinst setup bench tools

docs:
	@$(PYTHON) -m tools.message_page
	@$(PYTHON) -m tools.decision_index

test: setup-test lint
	@$(PYTEST) $(DEADLINE) -m $(FIRST)

test-unit: setup-test
	@$(PYTEST) $(DEADLINE) -m 'not slow and not full and not vm'

test-all: setup-all lint
	@KINST_TEST_ALL=1 $(PYTEST) $(DEADLINE) -m 'not slow'

# What make test-all runs and make test does not, or not with as many examples.
test-rest: setup-all
	@KINST_TEST_ALL=1 $(PYTEST) $(DEADLINE) -m $(REST)

# With examples and seeds that are new each time.
test-release: setup-all lint
	@KINST_TEST_ALL=1 KINST_RANDOM=1 $(PYTEST)

# From nothing: debootstrap's minbase, and the packages and kernels from this machine's mirrors.
test-fresh: setup-test
	@$(PYTHON) -m tests.setup.fresh_root 'make trace' 'make test'

bench: setup
	@$(PYTHON) bench/hit_cost.py

lock:
	@setup/lock.sh

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find kinst tests bench setup -name __pycache__ -prune -exec rm -rf {} +
