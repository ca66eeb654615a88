# `make demo` shows a ring at work, `make test` runs every check. Both install what the machine lacks (scripts/install.sh).
SHELL := bash
.DEFAULT_GOAL := build
.PHONY: build demo test models phone

export KVASIR_CACHE ?= $(HOME)/.cache/kvasir
# outside the checkout, so that llama.cpp, which takes minutes, is built once for all checkouts
export CARGO_TARGET_DIR ?= $(KVASIR_CACHE)/target

binaries := kvasir kvasir-stage kvasir-relay kvasir-operator

# programs from the target folder to bin/
leave = for binary in $(1); do install -D "$$CARGO_TARGET_DIR/release/$$binary" "bin/$$binary" || exit; done

build:
	scripts/install.sh build
	cargo build --locked --release --workspace
	$(call leave,$(binaries))

# only what it shows: without the operator, a client of Kubernetes needn't be built
demo:
	scripts/install.sh demo
	cargo build --locked --release --workspace --bin kvasir --bin kvasir-stage
	$(call leave,kvasir kvasir-stage)
	scripts/models.sh smollm2
	scripts/demo.sh

test:
	scripts/install.sh test
	scripts/models.sh smollm2 gemma3
	scripts/test.sh

models:
	scripts/models.sh smollm2 gemma3

# bin/kvasir-aarch64, for Termux: docs/phones.md
phone:
	scripts/install.sh phone
	scripts/phone.sh
