PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# $(call install,package): where that needs no password
install = { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y $(1) >/dev/null; }

.PHONY: demo test lint soak docs docs-serve results dist clean sandbox postgres browser
.DEFAULT_GOAL := test

$(READY): pyproject.toml constraints.txt packages/oddlm-smol/pyproject.toml | sandbox
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[all,dev,docs]' -e ./packages/oddlm-smol
	touch $(READY)

sandbox:  # for programs that a model wrote
	@command -v bwrap >/dev/null || $(call install,bubblewrap) \
	|| echo 'To score code, install bubblewrap:  sudo apt-get install bubblewrap  (dnf, pacman: the same name)'

postgres:  # for the tests of tuning on many machines
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || $(call install,postgresql) \
	|| echo 'PostgreSQL will NOT be tested; to test it:  sudo apt-get install postgresql'

browser:  # for the tests of pages
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	|| $(call install,chromium) \
	|| echo 'To test the pages, install Chromium:  sudo apt-get install chromium  (dnf, pacman: the same name)'

demo: $(READY)  ## set up, then show plain and diverse sampling side by side
	$(BIN)/oddlm demo

test: lint | postgres browser  ## set up, then lint, types and all tests
	$(BIN)/pytest -n 2 -m 'not soak'

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: $(READY) | postgres browser  ## longer trials
	$(BIN)/pytest -n 2 --hypothesis-profile soak

docs docs-serve: export NO_MKDOCS_2_WARNING := 1
docs: $(READY)  ## build the documentation in site/
	$(BIN)/mkdocs build --strict

docs-serve: $(READY)  ## show the documentation, rebuilt on every change
	$(BIN)/mkdocs serve --watch src --watch CHANGELOG.md

results: $(READY)  ## write docs/results.md and the figures on other pages from results/
	$(BIN)/python recipes/results/page.py

dist: $(READY)  ## the wheels and sdists of oddlm and oddlm-smol, checked
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m build --no-isolation --outdir dist packages/oddlm-smol
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf $(VENV) build dist site
