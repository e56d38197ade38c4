# `make help` lists the targets. A LIBTORCH in the environment is used as it is; otherwise libtorch is fetched
# once into .libtorch.

export LIBTORCH ?= $(abspath .libtorch)/torch
CARGO ?= cargo
PYTHON ?= python3
PACKAGES := sh tests/setup/packages.sh
# Expanded when a recipe runs, after the packages have been installed.
ENVIRONMENT = env $$(sh tests/setup/openssl.sh)

.DEFAULT_GOAL := help
.PHONY: help demo build dist dist-libtorch dist-programs dist-only dist-twice dist-check libtorch test lint msrv audit advice docs screenshot captures gpu-test gpu-kit clean build-packages test-packages

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: libtorch ## train CartPole with two ranks on this machine
	$(ENVIRONMENT) $(CARGO) build --profile demo --workspace
	target/demo/rankdeck run configs/cartpole_ppo.toml --hosts hosts.toml

build: libtorch ## release build of the console and the trainer
	$(ENVIRONMENT) $(CARGO) build --release --workspace

# A fixed path for every builder, because OpenSSL contains the path that it is built in.
DIST_TARGET ?= /var/tmp/rankdeck-dist
# x86_64, or aarch64 with Debian's cross compilers and its libtorch.
MACHINE := $(shell uname -m)
DIST_ARCH ?= $(MACHINE)
ifeq ($(DIST_ARCH),$(MACHINE))
DIST_LIBTORCH = $(LIBTORCH)
else
DIST_LIBTORCH = $(abspath .libtorch-$(DIST_ARCH))/torch
endif
DIST_TRIPLE = $(DIST_ARCH)-unknown-linux-gnu
DIST_PROGRAMS = -p rankdeck -p rankdeck-launcher -p rankdeck-trainer
# Paths of this machine, replaced in programs. OpenSSL embeds CFLAGS, so C compilers get them through RANKDECK_REMAP.
REMAP = $(CURDIR)=. $${CARGO_HOME:-$$HOME/.cargo}=cargo

dist: dist-libtorch dist-only ## tarball, wheel and .deb for glibc 2.28 and newer, in dist/

dist-libtorch: build-packages
	@if [ "$(DIST_ARCH)" = "$(MACHINE)" ]; then $(MAKE) --no-print-directory libtorch; \
	else $(PYTHON) tests/setup/fetch_libtorch.py .libtorch-$(DIST_ARCH) $(DIST_ARCH); fi

dist-programs:
	sysroot=$$($(PYTHON) packaging/sysroot.py $(DIST_ARCH) $(DIST_TARGET)/sysroot-$(DIST_ARCH)) && \
	env $$sysroot LIBTORCH="$(DIST_LIBTORCH)" OPENSSL_NO_VENDOR=0 RANKDECK_REMAP="$(REMAP)" \
		RUSTFLAGS="$$(printf -- '--remap-path-prefix=%s ' $(REMAP))" \
		$(CARGO) build --release --locked $(DIST_PROGRAMS) --target $(DIST_TRIPLE) --target-dir $(DIST_TARGET)

# `make dist` without installing libtorch and packages.
dist-only: dist-programs
	$(PYTHON) packaging/dist.py $(DIST_TARGET)/$(DIST_TRIPLE)/release dist --released

# TWICE: build only these programs, and no packages.
dist-twice: dist-libtorch ## build packages from two checkouts and compare them (TWICE=rankdeck-launcher is faster)
	DIST_ARCH="$(DIST_ARCH)" DIST_TRIPLE="$(DIST_TRIPLE)" DIST_TARGET="$(DIST_TARGET)-twice" DIST_LIBTORCH="$(DIST_LIBTORCH)" \
		$(PYTHON) packaging/dist_twice.py $(TWICE)

dist-check: ## run the packages of DIST_ARCH in dist/ (in qemu-user-static if needed)
	$(PYTHON) packaging/check.py $(DIST_ARCH) dist "$(DIST_LIBTORCH)" --released

libtorch: build-packages ## libtorch 2.11.0 into .libtorch (544 MB from PyPI, once)
	@if [ "$(LIBTORCH)" = "$(abspath .libtorch)/torch" ]; then \
		$(PYTHON) tests/setup/fetch_libtorch.py .libtorch; \
	elif [ -f "$(LIBTORCH)/lib/libtorch_cpu.so" ]; then \
		echo "libtorch: using LIBTORCH=$(LIBTORCH)" >&2; \
	else \
		echo "libtorch: LIBTORCH=$(LIBTORCH) has no lib/libtorch_cpu.so; unset it, and make fetches one" >&2; exit 1; \
	fi

test: libtorch test-packages ## every test, once; lists skipped ones
	$(ENVIRONMENT) bash tests/setup/test.sh

lint: libtorch ## formatting and clippy
	$(CARGO) fmt --all --check
	$(ENVIRONMENT) $(CARGO) clippy --workspace -- -D warnings
	$(ENVIRONMENT) $(CARGO) clippy --workspace --all-targets --features rankdeck-trainer/inject -- -D warnings

RUST_VERSION = $(shell sed -n 's/^rust-version = "\(.*\)"/\1.0/p' Cargo.toml)
msrv: libtorch ## build with the oldest supported Rust, which rustup installs
	rustup run $(RUST_VERSION) rustc --version || rustup toolchain install --profile minimal $(RUST_VERSION)
	$(ENVIRONMENT) rustup run $(RUST_VERSION) cargo check --locked --workspace

audit: ## licenses, sources and advisories of dependencies, with cargo-deny; AUDIT=optional passes without it
	@if ! $(CARGO) deny --version >/dev/null 2>&1; then \
	  echo "audit: NOT checked: cargo-deny is not installed; hint: cargo install --locked cargo-deny" >&2; \
	  test "$(AUDIT)" = optional; exit; fi; \
	$(CARGO) deny check bans licenses sources || exit; \
	if ! $(CARGO) deny fetch db >/dev/null 2>&1; then \
	  echo "audit: advisories are NOT checked: cannot fetch their database" >&2; \
	  test "$(AUDIT)" = optional; \
	else $(CARGO) deny check advisories; fi

advice: libtorch ## long functions, undocumented items and words that VOICE.md replaces; never fails
	-$(ENVIRONMENT) $(CARGO) clippy --workspace --quiet -- -W clippy::too_many_lines -W clippy::too_many_arguments -W missing_docs
	-@sh tests/setup/words.sh

docs: build-packages ## write the generated tables and examples in docs/
	UPDATE_EXPECTED=1 $(ENVIRONMENT) $(CARGO) test --test console documents::

screenshot: build ## update docs/screen.svg from a real run
	$(ENVIRONMENT) $(CARGO) build --release --workspace --example screenshot
	target/release/examples/screenshot target/release/rankdeck docs/screen.svg

captures: build ## every page of the console as text and SVG, in CAPTURES (target/captures)
	$(PYTHON) examples/captures.py $(or $(CAPTURES),target/captures)

gpu-test: build-packages ## tests that need an NVIDIA GPU, with python3's torch 2.11.0 (or LIBTORCH)
	@torch="$(LIBTORCH)"; \
	if [ "$$torch" = "$(abspath .libtorch)/torch" ]; then torch=$$($(PYTHON) tests/setup/fetch_libtorch.py --installed) || exit 1; fi; \
	LIBTORCH="$$torch" CARGO="$(CARGO)" $(ENVIRONMENT) sh tests/setup/gpu_test.sh

gpu-kit: build ## target/gpu-kit: all measurements and checks of benches/gpu, for a bare machine with a GPU
	CC="$${CC:-cc}" PYTHON=$(PYTHON) sh benches/gpu/pack.sh target/release target/gpu-kit

clean: ## remove build output, but not .libtorch and runs
	$(CARGO) clean

build-packages:
	@$(PACKAGES) build
	-@$(PACKAGES) openssl

test-packages:
	@$(PACKAGES) build test
	-@$(PACKAGES) slurm
	-@$(PACKAGES) containers
	-@$(PACKAGES) browser
