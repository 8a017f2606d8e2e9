# GNU make. `make help` lists the targets; nothing needs to be installed or active beforehand.
PYTHON ?= python3
VENV ?= .venv
PEERS ?= .venv-peers
READER ?= .venv-hta
MEASURED ?= ../shared/measured
MODELS ?= llama3.1-8b qwen3-30b-a3b
WORKLOAD ?= --hw h100-sxm --batch 8 --prompt 2048 --generate 256
BASE := $(VENV)/.ready-base
READY := $(VENV)/.ready
LINT := $(VENV)/.ready-lint
DOCS := $(VENV)/.ready-docs
RELEASE := $(VENV)/.ready-release
RUN := $(VENV)/bin
PYTEST = $(RUN)/python -m pytest --numprocesses auto $(if $(SEED),--randomly-seed=$(SEED) --hypothesis-seed=$(SEED))
SETTINGS := setup.cfg pyproject.toml scripts/setup.sh

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-page lint docs fuzz fuzz-serve invariants mutants bench bench-peers accuracy read-traces gallery wheel release web clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## a virtual environment with llmir in it, and Graphviz's dot where it can be had

$(BASE): $(SETTINGS)
	@sh scripts/setup.sh "$(PYTHON)" "$(VENV)"
	@touch $@

$(READY): $(BASE)
	@sh scripts/setup.sh "$(PYTHON)" "$(VENV)" test
	@touch $@

$(LINT): $(READY)
	@sh scripts/setup.sh "$(PYTHON)" "$(VENV)" lint
	@touch $@

$(DOCS): $(READY)
	@sh scripts/setup.sh "$(PYTHON)" "$(VENV)" docs
	@touch $@

$(RELEASE): $(BASE)
	@sh scripts/setup.sh "$(PYTHON)" "$(VENV)" release
	@touch $@

demo: $(BASE) ## two models on an H100: tables here, pictures in demo/
	@mkdir -p demo
	@for model in $(MODELS); do $(RUN)/llmir analyze $$model $(WORKLOAD) || exit; echo; done
	@echo "Pictures of prefill and decode, side by side:"
	@for model in $(MODELS); do for kind in svg png; do \
	  $(RUN)/llmir draw $$model $(WORKLOAD) --phase both -o demo/$$model.$$kind || exit; \
	done; done

# A worker takes 20 s to collect the tests, so that more than four do not pay for the quick ones.
test: $(READY) ## quick tests, in random order (SEED=1 for one that repeats), and every example in README, docs and code
	@$(PYTEST) -m "not slow" --maxprocesses 4

test-all: $(READY) ## all tests, slow ones too, as `make test` runs them
	@$(PYTEST)

test-page: $(READY) ## those of pages, in Chromium, which must be there
	@LLMIR_REQUIRE_BROWSER=1 $(RUN)/python -m pytest tests/backends/export/page tests/page_server/test_server_page.py

lint: $(LINT) ## ruff, and mypy in strict mode
	@$(RUN)/python -m ruff check .
	@$(RUN)/python -m mypy

docs: $(DOCS) gallery ## the documentation site with the gallery, in build/site; a warning is an error
	@$(RUN)/python -m sphinx -q -W --keep-going -d build/doctrees docs build/site
	@$(RUN)/python -m pytest tests/project/test_site.py
	@echo "docs: open build/site/index.html"

gallery: $(BASE) ## pages of 12 models on 4 devices that compute in the browser, in build/site/gallery
	@$(RUN)/python scripts/gallery.py build/site/gallery

fuzz: $(READY) ## mutated files and command lines for every reader (READERS=ir SECONDS=60 SEED=1)
	@$(RUN)/python -m tests.fuzz $(READERS) --seconds $(or $(SECONDS),60) --seed $(or $(SEED),0)

fuzz-serve: $(READY) ## requests of all kinds to the server of pages (REQUESTS=10000)
	@$(RUN)/python -m tests.page_server.serve_cases $(or $(REQUESTS),10000)

invariants: $(READY) ## random loads on simulated servers, each step of which is checked (LOADS=10000 SEED=0)
	@$(RUN)/python -m tests.backends.simulate.invariants $(or $(LOADS),10000) --seed $(or $(SEED),0)

mutants: $(READY) ## small changes to the code, of which the tests must notice 90% (AREAS=ir N=60 SEED=1; N=0 for all)
	@$(RUN)/python scripts/mutants.py $(AREAS) --number $(or $(N),60) --seed $(or $(SEED),0)

bench: $(READY) ## how fast llmir itself is
	@$(RUN)/python benchmarks/speed.py
	@$(RUN)/python benchmarks/families.py

bench-peers: $(READY) ## a new point beside AIConfigurator, which is installed in $(PEERS)
	@$(RUN)/python benchmarks/peers.py --environment $(PEERS)

accuracy: $(READY) ## errors by the tables in MEASURED, into docs/accuracy.json, its page and README; continues (WITHOUT=none|model|device|engine SECTIONS=runs)
	@$(RUN)/python -m benchmarks.accuracy $(MEASURED) $(addprefix --without ,$(WITHOUT)) $(addprefix --section ,$(SECTIONS)) $(addprefix --omit ,$(OMIT))

read-traces: $(READY) ## traces as HolisticTraceAnalysis reads them, which is installed in $(READER)
	@$(RUN)/python scripts/read_traces.py --environment $(READER)

wheel: $(BASE) ## a wheel in dist/, tried in a fresh environment from another folder
	@rm -rf build/lib build/bdist* dist
	@$(RUN)/python -m pip wheel . -qq --disable-pip-version-check --no-deps -w dist
	@sh scripts/try_wheel.sh "$(RUN)/python" dist/*.whl

release: $(RELEASE) ## sdist and wheel in dist/ for an upload: checked accuracy, twine, and the demo in a fresh environment
	@$(RUN)/python -m benchmarks.accuracy --check
	@rm -rf build/lib build/bdist* dist
	@$(RUN)/python -m build --quiet --outdir dist .
	@$(RUN)/python -m twine check --strict dist/*
	@sh scripts/try_wheel.sh "$(RUN)/python" dist/*.whl $(MAKE) --no-print-directory -C "$(CURDIR)" demo BASE=

web: ## what pages run: our modules minified, and what they have of d3; needs npm, and gives the same bytes each time
	@sh scripts/web.sh

clean: ## remove what the targets above made
	rm -rf $(VENV) $(PEERS) $(READER) .accuracy scripts/web/node_modules build dist demo *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
