# Everything runs from .venv, which `make setup` creates once and renews when
# pyproject.toml or constraints.txt change. `make PYTHON=python3.12 setup` picks the interpreter.
# What else the demo and the tests need is installed with apt-get where that takes no question
# (.ci/packages.sh); `make SYSTEM_PACKAGES=no test` leaves the system alone. The clients of the skills
# come into .venv with npm, where it is (.ci/clients.sh); `make CLIENTS=no test` goes without them.

PYTHON ?= python3
# One test or build process per core, but no more than eight: each test process loads torch.
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n < 8 ? n : 8)))
# One more, since tests of processes and servers wait for these.
TEST_JOBS ?= $(shell echo $$(($(JOBS) + 1)))
# What we measure ourselves against. Pinned, so that a ratio means the same thing tomorrow.
PEERS := stable-baselines3==2.9.2 sb3-contrib==2.9.2 skrl==2.1.1
# d3rlpy and imitation pin versions that nothing else here would run with, and SheepRL and BenchMARL
# ask for much that is not imported here: they come without their requirements, with what they import.
UNPINNED := d3rlpy==2.8.1 gym==0.26.2 gym-notices==0.1.0 imitation==1.0.1 seals==0.2.1
UNPINNED += sheeprl==0.8.4 lightning==2.6.6 lightning-utilities==0.15.3 torchmetrics==1.9.0
UNPINNED += hydra-core==1.3.8 omegaconf==2.4.0 antlr4-python3-runtime==4.9.3 python-dotenv==1.2.4
UNPINNED += benchmarl==1.5.2 torchrl==0.11.1 tensordict==0.11.0 vmas==1.5.2 pyvers==0.2.3
PEERS += pyglet==1.5.27 orjson cloudpickle structlog colorama dataclasses-json scikit-learn click opencv-python-headless

BIN := .venv/bin
STAMP := .venv/.installed
CLIENTS_FOLDER := .venv/clients
BENCH_BIN := .venv-bench/bin
BENCH_STAMP := .venv-bench/.installed
QUIETLY := -qq --no-compile --disable-pip-version-check
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q
PACKAGES := git-packages cpp-packages postgres-packages openssl-packages ssh-packages
PACKAGES += browser-packages
BEFORE_TESTS := lint types contracts collect cpp clients $(PACKAGES)
# Hundreds of processes read what the first ones compiled, whatever this shell says.
export PYTHONDONTWRITEBYTECODE :=
# A literal comma would end an argument of `call`.
comma := ,

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types contracts cpp bench defaults docs proto stubs clean
.PHONY: $(PACKAGES) clients collect

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## Create .venv with everything that the demo and the tests need

demo: git-packages cpp-packages setup ## See an agent learn, a comparison, a whole study judged, and a live system served
	@$(BIN)/assay demo
	@$(BIN)/assay study demo
	@$(BIN)/assay serve demo --seconds 30

# The C++ client is built while apt-get, npm and pip install, which hardly keep a core busy.
test: ## Run lint, types, import contracts and all tests
	@$(MAKE) --no-print-directory --jobs 3 --output-sync=target $(BEFORE_TESTS)
	$(PYTEST) -n $(TEST_JOBS) --dist worksteal $(ARGS)

lint: setup ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## Check types
	$(BIN)/mypy

contracts: setup ## Check who imports whom
	$(BIN)/lint-imports

# Every test process would compile all tests, at the same time; after this none does.
collect: setup
	@mkdir -p build
	@$(PYTEST) --collect-only $(ARGS) >build/collected.txt || { cat build/collected.txt; exit 1; }

# The C++ client; skipped, with the reason, where its compiler or libraries cannot be had.
cpp: cpp-packages ## Build and test the C++ client
	@mkdir -p build
	@clients/cpp/test.sh build/cpp $(JOBS)

clients:
	@.ci/clients.sh $(CLIENTS_FOLDER)

$(PACKAGES): %-packages:
	@.ci/packages.sh $*

bench: $(BENCH_STAMP) cpp ## Measure speed side by side with the peers, in .venv-bench
	$(BENCH_BIN)/python benchmarks/speed.py $(ARGS)
	$(BENCH_BIN)/python benchmarks/offline_speed.py $(if $(ARGS),--quick,--store)
	$(BENCH_BIN)/python benchmarks/imitation_speed.py $(if $(ARGS),--quick,--store)
	$(BENCH_BIN)/python benchmarks/world_speed.py $(if $(ARGS),--quick,--store)
	$(BENCH_BIN)/python benchmarks/teams.py speed $(if $(ARGS),--quick,--store)
	$(BENCH_BIN)/python benchmarks/priorities.py $(if $(ARGS),--quick,--store)
	$(BENCH_BIN)/python benchmarks/wrappers.py $(if $(ARGS),--quick,--store)
	$(BENCH_BIN)/python benchmarks/server.py $(if $(ARGS),--quick,--store)

defaults: $(BENCH_STAMP) ## Measure defaults against the peers' defaults; goes on where it was (hours)
	$(BENCH_BIN)/python benchmarks/defaults.py run --jobs $(JOBS) $(ARGS)
	$(BENCH_BIN)/python benchmarks/report.py

docs: setup ## Run every snippet of the documentation
	$(PYTEST) tests/test_docs.py $(ARGS)

# For who changes assay.proto; its products are committed.
proto: setup ## Generate the wire format again, after a change of assay.proto
	$(BIN)/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src --grpc_python_out=src assay/server/protocol/assay.proto

# For who adds an algorithm or changes a setting; the stub is committed.
stubs: setup ## Write the types of `import assay` again, after a change of algorithms
	$(BIN)/python -m assay.managed.stub

clean: ## Remove caches and build products (never runs or environments)
	rm -rf build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find src tests benchmarks examples -type d -name __pycache__ -prune -exec rm -rf {} +

# pip alone finds a build of torch that its configuration names, and uv installs the rest in a tenth
# of the time, unless pip has an index of its own. Modules are compiled when they are first imported.
# $(call install,ENVIRONMENT,REQUIREMENTS,WITHOUT THEIR REQUIREMENTS)
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is missing or older than 3.11. Name another: make PYTHON=python3.12 $(MAKECMDGOALS)"; \
	  exit 1; }
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(1) >/dev/null || \
	  { .ci/packages.sh venv && $(PYTHON) -m venv $(1); } || { \
	  echo "$(PYTHON) cannot create $(1). On Debian and Ubuntu: sudo apt install python3-venv"; \
	  exit 1; }
	@echo "Installing into $(1) (minutes the first time)"
	@$(1)/bin/python -m pip install $(QUIETLY) -c constraints.txt torch uv
	@install="$(1)/bin/uv pip install -q --python $(1)/bin/python"; \
	! $(1)/bin/python -m pip config list | grep -q '\.index-url=' || \
	  install="$(1)/bin/python -m pip install $(QUIETLY)"; \
	$$install -c constraints.txt $(2)$(if $(3), && $$install --no-deps $(3))
	@touch $@
endef

$(STAMP): pyproject.toml constraints.txt
	$(call install,.venv,-e '.[all$(comma)dev]')

$(BENCH_STAMP): pyproject.toml constraints.txt Makefile
	$(call install,.venv-bench,-e '.[server$(comma)box2d$(comma)mujoco$(comma)minatar$(comma)minigrid$(comma)dm-control$(comma)pettingzoo$(comma)foraging$(comma)data]' pytest $(PEERS),$(UNPINNED))
