# Every target that needs .venv makes it first. `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help venv run check test bench-lab bench-agreement bench-prediction bench-experiments bench-links
BIN := .venv/bin
MEASURING := tests/fabric tests/lab tests/node tests/uml # nothing may run beside these
# CI=true runs the slow, statistical tests as well; so does `make test SLOW=yes`.
WHICH := $(if $(CI)$(SLOW),,-m "not slow")

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

venv: ## make .venv with everything for development
	@bash scripts/make-venv.sh

run: venv ## run the bandwidth scenario: does a faster link make training scale?
	$(BIN)/rig run scenarios/bandwidth.yaml

check: venv ## style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

test: venv check ## every check and test; with CI=true the slow ones too
	$(BIN)/python -m pytest -n 2 --dist loadfile $(addprefix --ignore=,$(MEASURING))
	$(BIN)/python -m pytest $(MEASURING) $(WHICH)

bench-lab: venv ## how long labs take to come up; rewrites docs/bring-up.md
	$(BIN)/python -m tests.bench.bring_up

bench-agreement: venv ## the bandwidth scenario in every lab; rewrites docs/agreement.md
	$(BIN)/python -m tests.bench.agreement

bench-prediction: venv ## 36 cells against their predictions, an hour; rewrites docs/accuracy.md
	$(BIN)/python -m tests.bench.prediction

bench-experiments: venv ## what scenarios/ has no kept record of, 45 minutes; rewrites docs/experiments.md
	$(BIN)/python -m tests.bench.experiments

bench-links: venv ## how true links are, beside plain tc and Mininet; rewrites docs/fidelity.md
	$(BIN)/python -m tests.bench.links
