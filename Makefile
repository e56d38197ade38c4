# `make help` lists the targets. A LIBTORCH in the environment is used as it is; otherwise libtorch is fetched
# once into .libtorch.

export LIBTORCH ?= $(abspath .libtorch)/torch
CARGO ?= cargo
PYTHON ?= python3
PACKAGES := sh tests/setup/packages.sh
# Expanded when a recipe runs, after the packages have been installed.
ENVIRONMENT = env $$(sh tests/setup/openssl.sh)

.DEFAULT_GOAL := help
.PHONY: help demo build dist dist-libtorch dist-programs dist-only dist-twice dist-check libtorch test lint msrv audit screenshot captures gpu-test gpu-kit clean build-packages test-packages

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: libtorch ## train CartPole with two ranks on this machine, in the console
	$(ENVIRONMENT) $(CARGO) build --profile demo --workspace
	target/demo/rankdeck run configs/cartpole_ppo.toml --hosts hosts.toml

build: libtorch ## release build of the console and the trainer
	$(ENVIRONMENT) $(CARGO) build --release --workspace

# One place for every builder: OpenSSL keeps the path that it is built in.
DIST_TARGET ?= /var/tmp/rankdeck-dist
# x86_64, or aarch64 by Debian's cross compilers, with the libtorch of that.
MACHINE := $(shell uname -m)
DIST_ARCH ?= $(MACHINE)
ifeq ($(DIST_ARCH),$(MACHINE))
DIST_LIBTORCH = $(LIBTORCH)
else
DIST_LIBTORCH = $(abspath .libtorch-$(DIST_ARCH))/torch
endif
DIST_TRIPLE = $(DIST_ARCH)-unknown-linux-gnu
DIST_PROGRAMS = -p rankdeck -p rankdeck-launcher -p rankdeck-trainer
# Folders of this machine, which no program shall name. OpenSSL writes CFLAGS into itself, so C compilers get them otherwise.
REMAP = $(CURDIR)=. $${CARGO_HOME:-$$HOME/.cargo}=cargo

dist: dist-libtorch dist-only ## tarball, wheel and .deb of the console and the trainer for glibc 2.28 and newer, in dist/

dist-libtorch: build-packages
	@if [ "$(DIST_ARCH)" = "$(MACHINE)" ]; then $(MAKE) --no-print-directory libtorch; \
	else $(PYTHON) tests/setup/fetch_libtorch.py .libtorch-$(DIST_ARCH) $(DIST_ARCH); fi

dist-programs:
	sysroot=$$($(PYTHON) packaging/sysroot.py $(DIST_ARCH) $(DIST_TARGET)/sysroot-$(DIST_ARCH)) && \
	env $$sysroot LIBTORCH="$(DIST_LIBTORCH)" OPENSSL_NO_VENDOR=0 RANKDECK_REMAP="$(REMAP)" \
		RUSTFLAGS="$$(printf -- '--remap-path-prefix=%s ' $(REMAP))" \
		$(CARGO) build --release --locked $(DIST_PROGRAMS) --target $(DIST_TRIPLE) --target-dir $(DIST_TARGET)

# `make dist` where libtorch and all packages are there already.
dist-only: dist-programs
	$(PYTHON) packaging/dist.py $(DIST_TARGET)/$(DIST_TRIPLE)/release dist --released

# TWICE: only these programs, and no packages.
dist-twice: dist-libtorch ## the packages of HEAD from two checkouts, compared by their hashes; TWICE=rankdeck-launcher is quicker
	DIST_ARCH="$(DIST_ARCH)" DIST_TRIPLE="$(DIST_TRIPLE)" DIST_TARGET="$(DIST_TARGET)-twice" DIST_LIBTORCH="$(DIST_LIBTORCH)" \
		$(PYTHON) packaging/dist_twice.py $(TWICE)

dist-check: ## the packages of DIST_ARCH in dist/, tried: by qemu-user-static where they are for another machine
	$(PYTHON) packaging/check.py $(DIST_ARCH) dist "$(DIST_LIBTORCH)" --released

libtorch: build-packages ## libtorch 2.11.0 into .libtorch (544 MB from PyPI, once)
	@if [ "$(LIBTORCH)" = "$(abspath .libtorch)/torch" ]; then \
		$(PYTHON) tests/setup/fetch_libtorch.py .libtorch; \
	elif [ -f "$(LIBTORCH)/lib/libtorch_cpu.so" ]; then \
		echo "libtorch: using LIBTORCH=$(LIBTORCH)" >&2; \
	else \
		echo "libtorch: LIBTORCH=$(LIBTORCH) has no lib/libtorch_cpu.so; unset it, and make fetches one" >&2; exit 1; \
	fi

test: libtorch test-packages ## every test, once; lists what cannot run here
	$(ENVIRONMENT) bash tests/setup/test.sh

lint: libtorch ## formatting and clippy
	$(CARGO) fmt --all --check
	$(ENVIRONMENT) $(CARGO) clippy --workspace -- -D warnings
	$(ENVIRONMENT) $(CARGO) clippy --workspace --all-targets --features rankdeck-trainer/inject -- -D warnings

RUST_VERSION = $(shell sed -n 's/^rust-version = "\(.*\)"/\1.0/p' Cargo.toml)
msrv: libtorch ## console and trainer with the oldest Rust that Cargo.toml promises, which rustup fetches
	rustup run $(RUST_VERSION) rustc --version || rustup toolchain install --profile minimal $(RUST_VERSION)
	$(ENVIRONMENT) rustup run $(RUST_VERSION) cargo check --locked --workspace

# `make test` holds licences and sources everywhere; advisories need cargo-deny and its database.
NO_ADVISORIES = "audit: advisories about dependencies are NOT checked:"
audit: ## advisories about dependencies, with cargo-deny where it and its database can be had
	@if ! $(CARGO) deny --version >/dev/null 2>&1; then echo $(NO_ADVISORIES) "cargo-deny is not installed" >&2; \
	elif ! $(CARGO) deny fetch db >/dev/null 2>&1; then echo $(NO_ADVISORIES) "its database cannot be fetched" >&2; \
	else $(CARGO) deny check advisories licenses sources; fi

screenshot: build ## docs/screen.svg anew, from a real run
	$(ENVIRONMENT) $(CARGO) build --release --workspace --example screenshot
	target/release/examples/screenshot target/release/rankdeck docs/screen.svg

captures: build ## every page of the console from a real run, as text and SVG, in CAPTURES (target/captures)
	$(PYTHON) examples/captures.py $(or $(CAPTURES),target/captures)

gpu-test: build-packages ## the tests that need an NVIDIA GPU, with the torch 2.11.0 that python3 has (or LIBTORCH)
	@torch="$(LIBTORCH)"; \
	if [ "$$torch" = "$(abspath .libtorch)/torch" ]; then torch=$$($(PYTHON) tests/setup/fetch_libtorch.py --installed) || exit 1; fi; \
	LIBTORCH="$$torch" CARGO="$(CARGO)" $(ENVIRONMENT) sh tests/setup/gpu_test.sh

gpu-kit: build ## target/gpu-kit: what a bare machine with a GPU needs to run every measurement and check of benches/gpu
	CC="$${CC:-cc}" PYTHON=$(PYTHON) sh benches/gpu/pack.sh target/release target/gpu-kit

clean: ## remove what was built; .libtorch and runs stay
	$(CARGO) clean

build-packages:
	@$(PACKAGES) build
	-@$(PACKAGES) openssl

test-packages:
	@$(PACKAGES) build test
	-@$(PACKAGES) slurm
	-@$(PACKAGES) containers
