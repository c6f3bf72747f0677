# Everything here needs only python3 and make: each target builds the environment that it uses.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FRAMEWORKS := $(patsubst requirements/%.txt,%,$(wildcard requirements/*.txt))
# What the package is tried with beside what is newest here: everything lowest, everything newest, without torch.
SHORT := .venv-versions/.ready
FRAMEWORKS_READY := $(patsubst %,.venv-%/.ready,$(FRAMEWORKS))
SUITE := PYTHONPATH=$(CURDIR)/conformance:$(CURDIR) $(BIN)/python -m ucp_conformance
DRIVERS = --driver "python=$(BIN)/python conformance/drivers/python/driver.py" \
	$(if $(shell command -v node),--driver "node=node conformance/drivers/node/driver.mjs")

# Tests make and delete some 100,000 files, which costs a third of their time on a disk: in memory where there is room.
MEMORY := /dev/shm
HAS_MEMORY = test -w $(MEMORY) && test "$$(df -kP $(MEMORY) | awk 'END { print $$4 }')" -ge 6000000 \
	&& ! grep -q ' $(MEMORY) [^ ]* [^ ]*noexec' /proc/mounts
PYTEST := $(if $(shell $(HAS_MEMORY) && echo yes),TMPDIR=$(MEMORY)) $(BIN)/python -m pytest

# Hundreds of processes that tests start would each compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help environment lint docs demo demo-run types test test-browser test-newest test-versions test-nightly simulate campaigns test-fast test-matrix test-frameworks test-cuda check conformance conformance-nightly mutants walks bench scale pictures build wheel-test clean

help:  ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*##  *\(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'

# One pip command, so that the torch pinned in the extra decides which torch is fetched.
$(READY): pyproject.toml
	@echo "Making the environment in $(VENV); this takes some minutes, once."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@

environment: $(READY)  ## make the environment in .venv, which every other target makes when it is missing

demo: $(READY)  ## save under FSDP2 x TP, convert, validate, resume on 3, 2 and 1 processes, compare
	$(BIN)/python examples/demo.py

demo-run: $(READY)  ## log every step, kill the job twice, go on from the very step under other layouts; what each step costs
	$(BIN)/python examples/demo_run.py $(if $(PICTURE),--picture $(PICTURE))

$(SHORT): $(READY) tests/versions/table.toml
	$(BIN)/python -m tests.versions --make-only 'short-*'
	@touch $@

test: $(READY) $(SHORT)  ## run every test but the packaging ones
	$(PYTEST) -n 2 --dist loadgroup -m "not wheel"

test-nightly: $(READY)  ## run the properties of geometry with 10,000 random examples each, all others with 400; an hour
	UCP_HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -n 2 --timeout 0 tests/geometry tests/storage/test_arithmetic.py
	UCP_HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest -n 2 --dist loadgroup --timeout 0 -m "not wheel" tests \
		--ignore tests/geometry --ignore tests/storage/test_arithmetic.py
	if command -v node > /dev/null; then UCP_SEARCH=long node --test js/test conformance/drivers/node/test; fi

test-browser: $(READY)  ## run the tests that drive a headless Chromium, which `make test` leaves out where there is none
	@command -v chromium chromium-browser google-chrome > /dev/null || { echo "There is no Chromium; Debian's package is chromium."; exit 1; }
	$(BIN)/python -m pytest -q -m browser tests/viewing

pictures: $(READY)  ## make every picture of the documentation anew, screenshots with a headless Chromium
	$(BIN)/python -m tests.documentation.pictures

simulate: $(READY)  ## run a million orders of operations of two and three writers, collectors, managers; half an hour or more
	$(BIN)/python -m tests.simulation

campaigns: $(READY) .venv-s3/.ready  ## fail system calls and requests to S3, damage bytes, lose power, kill jobs that log, fuzz, convert malicious files (docs/campaigns.md); hours
	$(BIN)/python -m tests.campaigns.faults
	$(BIN)/python -m tests.campaigns.damage --draws 8000
	$(BIN)/python -m tests.campaigns.damage --draws 2000 --medium memory
	$(BIN)/python -m tests.campaigns.power
	$(BIN)/python -m tests.campaigns.update_log --stores 0
	.venv-s3/bin/python -m tests.campaigns.update_log --steps 0 --jobs 0 --replicas 0 --ranks 0 --replaced 0
	$(BIN)/python -m tests.campaigns.hostile.malicious --count 500
	$(BIN)/python -m tests.campaigns.hostile
	.venv-s3/bin/python -m tests.campaigns.proxy
	.venv-s3/bin/python -m tests.campaigns.damage --draws 500 --medium s3

test-fast: $(READY)  ## run the tests that start no other processes, with few examples each
	UCP_HYPOTHESIS_PROFILE=quick $(PYTEST) -n 2 -q -m "not wheel and not distributed"

# An environment for each framework, with what requirements/NAME.txt and NAME.npm pin, and this package as it lies here.
.venv-%/.ready: requirements/%.txt pyproject.toml
	$(PYTHON) -m venv .venv-$*
	DS_BUILD_OPS=0 .venv-$*/bin/python -m pip install -qq --disable-pip-version-check --requirement $<
	if [ -f requirements/$*.npm ]; then npm install --silent --prefix .venv-$* $$(cat requirements/$*.npm); fi
	.venv-$*/bin/python -m pip install -qq --disable-pip-version-check --editable .
	@touch $@

test-frameworks: $(FRAMEWORKS_READY)  ## run the tests that need frameworks, each in its own environment
	set -e; for name in $(FRAMEWORKS); do .venv-$$name/bin/python -m pytest -q tests/frameworks_live/$$name; done

test-cuda: $(READY)  ## run the tests that need a CUDA device, where torch finds one
	$(BIN)/python -m pytest -q tests/frameworks_live/cuda

test-versions: $(READY)  ## run tests with each version of Python, torch and what else it needs; an hour; results go into docs/support.md
	$(BIN)/python -m tests.versions --into docs/support.md

test-newest: $(READY)  ## build the wheel, install it with the newest of everything, run every test of `make test` on it
	$(BIN)/python -m tests.versions.installed

test-matrix: $(READY)  ## save under every parallelism, load under every other; a minute
	UCP_MATRIX=full $(BIN)/python -m pytest -q tests/state_dict/test_matrix.py tests/integrations/torch_dcp

lint: $(READY)  ## style, types of Python and JavaScript, layers, workflows, issue forms and CITATION.cff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	cd conformance && ../$(BIN)/mypy
	$(BIN)/lint-imports
	if command -v npm > /dev/null; then $(MAKE) types; else echo "npm is missing: the types of js/ are left out."; fi
	$(BIN)/actionlint
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions conformance/action.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

# The compiler and the types of Node that js/package.json pins, beside the package and not in it.
.venv-types/.ready: js/package.json
	mkdir -p .venv-types
	cp js/package.json .venv-types/
	npm install --silent --no-package-lock --prefix .venv-types
	@touch $@

types: .venv-types/.ready  ## check the types of the JavaScript package and of the page; it needs npm
	.venv-types/node_modules/.bin/tsc -p js --typeRoots .venv-types/node_modules/@types

docs: $(READY)  ## type every block of the pages and compare what it prints, and check what the pages name
	$(PYTEST) -n 2 --dist loadgroup tests/documentation tests/spec

check: lint  ## what lint does, and every test with the coverage thresholds
	$(PYTEST) -n 2 --dist loadgroup -m "not wheel" --cov --cov-report=
	$(BIN)/coverage report --fail-under=95
	$(BIN)/coverage report --include='ucpformat/geometry/*' --fail-under=100

# Where there is no Node the reference runs alone, and says so.
conformance: $(READY)  ## run the conformance suite on both implementations, reports in out/conformance
	@command -v node > /dev/null || echo "Node is missing: the second implementation is left out."
	$(SUITE) run --profile default --report out/conformance $(DRIVERS)
	@echo "out/conformance/index.html"

conformance-nightly: $(READY)  ## the same with thousands of generated cases per pair, in out/conformance-nightly
	$(SUITE) run --profile nightly --report out/conformance-nightly $(DRIVERS)

mutants: $(READY)  ## plant defects in both implementations and in the whole library, one at a time, and see each found (docs/campaigns.md); half an hour
	$(BIN)/python conformance/mutants/campaign.py

walks: $(READY)  ## count what a newcomer meets on the way through a save, a slice, a validation, a conversion
	$(BIN)/python -m benchmarks.walks --upward

bench: $(READY)  ## measure
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks reshard

scale: $(READY)  ## plan a model of 10^12 parameters on 8,192 ranks; results go into docs/scale.md
	$(BIN)/python -m benchmarks.scale --into docs/scale.md

build: $(READY)  ## make the wheel and the source archive in dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist

wheel-test: $(READY)  ## build the wheel, install it alone in a fresh environment, use it
	$(BIN)/python -m pytest -m wheel

clean:  ## remove what the targets wrote; the environment in .venv stays
	rm -rf build dist out .venv-versions .venv-newest .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf .import_linter_cache *.egg-info
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
