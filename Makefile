# `make test` and `make demo` do all set-up themselves: a virtual environment in .venv, the install, the job.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: test demo serve evaluate lint clean
.DELETE_ON_ERROR:

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[server,dev]'
	touch $(STAMP)

test: $(STAMP)
	$(BIN)/python -m pytest -n auto

demo: $(STAMP)
	$(BIN)/python demo/story.py

serve: $(STAMP)
	$(BIN)/kvserve --kv-disk-dir demo/kv-serve

evaluate: $(STAMP)
	$(BIN)/python training/evaluate.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

clean:
	rm -rf $(VENV) demo/kv-serve
