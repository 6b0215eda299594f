# `make test` and `make demo` do all set-up themselves: a virtual environment in .venv, the install, the job.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# The coding agents that kvserve is tested with, on request only: 1.2 GB.
AGENTS := @openai/codex@0.171.0 @anthropic-ai/claude-code@2.1.197 @mariozechner/pi-coding-agent@0.73.1 opencode-ai@1.18.33

.PHONY: test demo serve evaluate agents lint clean
.DELETE_ON_ERROR:

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[server,dev]'
	touch $(STAMP)

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal

demo: $(STAMP)
	$(BIN)/python demo/story.py

serve: $(STAMP)
	$(BIN)/kvserve --kv-disk-dir demo/kv-serve

evaluate: $(STAMP)
	$(BIN)/python training/evaluate.py

agents: $(STAMP)
	npm install --silent --no-audit --no-fund --prefix .agents $(AGENTS)
	$(BIN)/python -m pytest -m agents -rP tests/e2e/test_agents.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

clean:
	rm -rf $(VENV) .agents demo/kv-serve
