# Every target is one visible command. Variables: RECIPE, SCALE, VARY, SEEDS and CLUSTER of what is to run (an empty SCALE
# means the recipe's own, an empty VARY the recipe alone); SWEEP, the name of one that has run, empty for the newest; RUN,
# as `rlsweep logs --help` says. For example
#   make ablate RECIPE=recipes/dapo-qwen.yaml SCALE=tiny VARY=off_policy=ppo-8,pipeline-8 CLUSTER=h100
#   make logs RUN=loss=cispo,seed=0

PYTHON ?= python3
RECIPE ?= recipes/scalerl.yaml
SCALE ?= tiny
VARY ?= loss=dapo,cispo,gspo
SEEDS ?= 2
CLUSTER ?= local
SWEEP ?=
RUN ?=

BIN := .venv/bin
ASKED := $(RECIPE) $(if $(SCALE),--scale $(SCALE)) $(if $(VARY),--vary '$(VARY)') --seeds $(SEEDS) --cluster $(CLUSTER)
NAMED := $(if $(RUN),'$(RUN)') $(if $(SWEEP),--sweep '$(SWEEP)')

.PHONY: help demo test check plan ablate status logs cancel report slurm-check slurm-up slurm-down test-slurm soak docs \
	bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: .venv/installed ## compare three losses on the embedded model and task, and write the report (minutes)
	$(BIN)/rlsweep ablate recipes/scalerl.yaml --scale tiny --vary loss=dapo,cispo,gspo --seeds 2 && $(BIN)/rlsweep report

test: .venv/test-installed ## run every test that needs no GPU
	$(BIN)/python -m pytest -n 2

check: .venv/test-installed ## lint, format, types, and the arrows between the packages
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

plan: .venv/installed ## say what `make ablate` would do; writes nothing
	$(BIN)/rlsweep plan $(ASKED)

ablate: .venv/installed ## run the sweep of RECIPE SCALE VARY SEEDS on CLUSTER
	$(BIN)/rlsweep ablate $(ASKED)

status: .venv/installed ## say where the runs of SWEEP are
	$(BIN)/rlsweep status $(if $(SWEEP),'$(SWEEP)')

logs: .venv/installed ## follow what the trainer of RUN prints, over requeues and later attempts
	$(BIN)/rlsweep logs --follow $(NAMED)

cancel: .venv/installed ## end RUN, or all runs of SWEEP
	$(BIN)/rlsweep cancel $(NAMED)

report: .venv/installed ## fit and compare SWEEP
	$(BIN)/rlsweep report $(if $(SWEEP),'$(SWEEP)')

slurm-check: .venv/installed ## ask the scheduler what it allows, and whether the profile CLUSTER fits
	$(BIN)/rlsweep cluster check $(filter-out local,$(CLUSTER))

slurm-up: ## start a Slurm of four nodes on this machine, and say what to export to use it
	$(PYTHON) slurm/one_machine.py install && $(PYTHON) slurm/one_machine.py up

slurm-down: ## stop that Slurm
	$(PYTHON) slurm/one_machine.py down

test-slurm: .venv/test-installed ## run the tests that need a Slurm on one of four nodes, started and stopped for them
	$(PYTHON) slurm/one_machine.py install && $(BIN)/python -m pytest -n 3 --dist loadfile -m slurm tests/slurm

soak: .venv/test-installed ## keep 24 runs on such a Slurm while nodes, daemons and jobs are killed (10 minutes)
	$(PYTHON) slurm/one_machine.py install && $(BIN)/python -m pytest -m soak tests/slurm

docs: .venv/installed ## write docs/cli.md and docs/metrics.md again
	$(BIN)/python -m rlsweep.cli.reference > docs/cli.md && $(BIN)/python -m rlsweep.store.metrics > docs/metrics.md

bench: .venv/bench-installed ## measure speed and memory, against TRL too, and write docs/benchmarks.md (minutes)
	$(BIN)/python tests/bench/run.py && $(BIN)/python tests/bench/render.py

clean: ## remove the environment and caches, never results
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv && $(BIN)/python -m pip install -q -c constraints.txt -e . && touch $@

.venv/test-installed: .venv/installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test]' && touch $@

.venv/bench-installed: .venv/installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[bench]' && touch $@
