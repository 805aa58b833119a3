# make venv | check | test | test-long | demo | docs | man | modules | helm | bench | bench-peers | simulate | test-fresh | lint | report; see CONTRIBUTING.md
SHELL := /bin/bash
# Tests start hundreds of processes: each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= $(shell tools/find-python.sh)
VENV := .venv
BIN := $(VENV)/bin
SEEDS ?= 20000
START ?= 1
# Processes that share the test files; 0: all in one, for a debugger. Eight are no faster on two cores.
WORKERS ?= 6
# Of make check.
QUICK := tests/test_tidy.py tests/store tests/remoting tests/ops tests/web

.PHONY: venv check demo collect test test-long interop docs docs-serve man modules helm screenshots lint report bench bench-peers simulate test-fresh clean

venv: $(VENV)/.ready

# One stamp: the environment is rebuilt only when what it is made of changes.
$(VENV)/.ready: requirements.txt pyproject.toml tools/make-venv.sh tools/install.sh tools/find-python.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" tools/make-venv.sh requirements.txt
	@touch $@

# The tests, the type checker and the documents.
$(VENV)/.dev-ready: $(VENV)/.ready requirements-dev.txt
	@tools/install.sh $(BIN)/python requirements-dev.txt --no-compile
	@touch $@

# Spark, 500 MB, for the audit.
$(VENV)/.audit-ready: $(VENV)/.ready requirements-audit.txt
	@tools/find-java.sh > /dev/null
	@tools/install.sh $(BIN)/python requirements-audit.txt --no-compile
	@touch $@

$(VENV)/.demo-ready: $(VENV)/.audit-ready demo/requirements.txt
	@tools/install.sh $(BIN)/python demo/requirements.txt
	@touch $@

# Foreign clients with what drives them (Go, Node, a Java compiler), beside the environment: 240 MB, about a minute.
# Py4J, which drives the Java ones, comes with Spark.
$(VENV)/.interop-ready: $(VENV)/.dev-ready $(VENV)/.audit-ready $(wildcard tests/interop/toolchain.py tests/interop/*.xml tests/interop/requirements.txt tests/interop/go/* tests/interop/java/* tests/interop/node/package* tests/interop/go5/* tests/interop/node5/package* tests/interop/python5/requirements.txt tests/interop/openapi/requirements.txt tests/interop/openapi/node/package*)
	@JAVA_HOME="$$(tools/find-java.sh)" && export JAVA_HOME && $(BIN)/python -m tests.interop.toolchain
	@touch $@

# RocketMQ's Rust client, for make test-long alone: its 250 crates take some minutes of one core.
$(VENV)/.rust-ready: $(VENV)/.dev-ready $(VENV)/.audit-ready $(wildcard tests/interop/rust5/Cargo.* tests/interop/rust5/src/*)
	@CARGO="$$(tools/find-cargo.sh)" && export CARGO && $(BIN)/python -m tests.interop.toolchain rust5
	@touch $@

demo: $(VENV)/.demo-ready
	@JAVA_HOME="$$(tools/find-java.sh)" && export JAVA_HOME && exec $(BIN)/python -m demo.flights $(DEMO_ARGS)

# The tests' assertions are rewritten here once, not by each worker of make test, which is also who tells of a fault.
collect: $(VENV)/.dev-ready $(VENV)/.demo-ready
	-@$(BIN)/python -m pytest --collect-only -qq > /dev/null

test: $(VENV)/.dev-ready $(VENV)/.demo-ready $(VENV)/.interop-ready
	@JAVA_HOME="$$(tools/find-java.sh)" && CHROMIUM="$$(tools/find-chromium.sh)" && export JAVA_HOME CHROMIUM && exec $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# What takes longer than a suite may: each planted fault is found by the fuzzer, for one.
test-long: $(VENV)/.dev-ready $(VENV)/.demo-ready $(VENV)/.interop-ready $(VENV)/.rust-ready
	@JAVA_HOME="$$(tools/find-java.sh)" && export JAVA_HOME && exec $(BIN)/python -m pytest -m long $(PYTEST_ARGS)

# Strictly: a broken link, anchor or a page that nobody finds fails it. Read it from build/docs/index.html;
# browsers search in it only where it is served.
docs: $(VENV)/.dev-ready
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Man pages of all commands, from their parsers; a test holds that they are as the commands are.
man: $(VENV)/.dev-ready
	@$(BIN)/python -m tools.manpages

# docs/modules.md, from the first sentences of docstrings; a test compares it with the code.
modules: $(VENV)/.ready
	@$(BIN)/python -m tools.module_page

# After a change of the Helm chart: what it makes of tests/helm/cases, by HELM or by a Helm built from its Go module.
helm: $(VENV)/.dev-ready
	@$(BIN)/python -m tests.helm.rendering

docs-serve: $(VENV)/.dev-ready
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

# Every scenario of every foreign client, a leader killed in each row: figures as JSON, some twenty minutes.
# Then our own client's scenarios against Apache's broker, killed and started again in each.
interop: $(VENV)/.interop-ready
	@JAVA_HOME="$$(tools/find-java.sh)" && export JAVA_HOME && $(BIN)/python -m tests.interop.figures $(INTEROP_ARGS) && exec $(BIN)/python -m tests.client.scenarios

screenshots: $(VENV)/.dev-ready
	@CHROMIUM="$$(tools/find-chromium.sh)" && export CHROMIUM && exec $(BIN)/python -m tests.browser.screenshots

# As CI does before the tests.
lint: $(VENV)/.dev-ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy

# For a person to read: lines of code, circles of imports, the longest files and functions.
report: $(VENV)/.dev-ready
	@exec $(BIN)/python -m tests.tidy.report

# At every save, about a minute: style, types, and the quick tests.
check: lint
	@exec $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile $(QUICK) $(PYTEST_ARGS)

bench: $(VENV)/.ready
	@$(BIN)/python -m bench $(BENCH_ARGS)

# Ours beside others, in turns; docs/performance.md says which and how.
$(VENV)/.peers-ready: $(VENV)/.audit-ready bench/peers/requirements.txt
	@tools/install.sh $(BIN)/python bench/peers/requirements.txt
	@touch $@

bench-peers: $(VENV)/.peers-ready
	@exec $(BIN)/python -m bench.peers $(PEERS_ARGS)

# On fresh Debian 12 and 13, built by debootstrap: by hand, before a release. Needs root.
test-fresh:
	@tools/test-fresh.sh

simulate: $(VENV)/.dev-ready
	@$(BIN)/python -m tests.simulator --seeds $(SEEDS) --start $(START) --jobs 2

clean:
	rm -rf $(VENV) data report build *.egg-info
