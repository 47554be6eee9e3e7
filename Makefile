# Every target is one visible command. Variables: RECIPE, SCALE, VARY, SEEDS, CLUSTER; an empty SCALE means the recipe's
# own, an empty VARY the recipe alone. For example
#   make ablate RECIPE=recipes/dapo-qwen.yaml SCALE=tiny VARY=off_policy=ppo-8,pipeline-8

PYTHON ?= python3
RECIPE ?= recipes/scalerl.yaml
SCALE ?= tiny
VARY ?= loss=dapo,cispo,gspo
SEEDS ?= 2
CLUSTER ?= local

BIN := .venv/bin
SWEEP := $(RECIPE) $(if $(SCALE),--scale $(SCALE)) $(if $(VARY),--vary '$(VARY)') --seeds $(SEEDS) --cluster $(CLUSTER)

.PHONY: help demo test check plan ablate report status docs bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: .venv/installed ## compare three losses on the embedded model and task, and write the report (minutes)
	$(BIN)/rlsweep ablate recipes/scalerl.yaml --scale tiny --vary loss=dapo,cispo,gspo --seeds 2 && $(BIN)/rlsweep report

test: .venv/test-installed ## run every test that needs no GPU
	$(BIN)/python -m pytest -n 2

check: .venv/test-installed ## lint, format, types, and the arrows between the packages
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

plan: .venv/installed ## say what `make ablate` would do; writes nothing
	$(BIN)/rlsweep plan $(SWEEP)

ablate: .venv/installed ## run the sweep of RECIPE SCALE VARY SEEDS CLUSTER
	$(BIN)/rlsweep ablate $(SWEEP)

report: .venv/installed ## fit and compare the newest sweep
	$(BIN)/rlsweep report

status: .venv/installed ## say where the runs of the newest sweep are
	$(BIN)/rlsweep status

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
