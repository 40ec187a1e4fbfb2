.PHONY: setup check test fmt lint types imports native bench docs tox clean

RUN = uv run

setup:            ## environment with everything, the Rust extension included
	uv sync --all-groups

check: lint types imports  ## everything but the slow tests
	$(RUN) pytest -m "not slow"

test:             ## every test
	$(RUN) pytest

lint:
	$(RUN) ruff check
	$(RUN) ruff format --check
	cargo fmt --manifest-path packages/automerge/rust/Cargo.toml --check

types:
	$(RUN) basedpyright

imports:
	$(RUN) lint-imports

fmt:
	$(RUN) ruff check --fix
	$(RUN) ruff format
	cargo fmt --manifest-path packages/automerge/rust/Cargo.toml

native:           ## rebuild the Rust extension
	uv sync --reinstall-package patchouli-automerge

bench:            ## the whole benchmark against the real daemon, with comparisons
	$(RUN) --group bench python -m benchmarks

tox:              ## each package alone, from its built wheel
	$(RUN) tox run
