# SPDX-License-Identifier: Apache-2.0
#
# A front for meson, ninja and pip. `make` leaves the programs at the top of build/ and the Python package in .venv. Nothing is fetched once
# everything is there. JOBS=N limits the compilers at work; CI=true makes warnings errors.
.DELETE_ON_ERROR:
.PHONY: all build python wheel dist deb install check lint docs demo demo-serve integrations bench soak fuzz format clean

JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python
INSTALL := $(PYTHON) -m pip install --quiet --no-build-isolation --no-deps --no-index --force-reinstall
VENV_PACKAGES := cloudpickle meson-python numpy opentelemetry-proto pytest pytest-xdist uvloop
# For developers, who have the repository. In a virtual environment of their own: they may need a
# later Python than the package does.
LINT_PACKAGES := mypy==2.4.1 ruff==0.17.6

MESON_FLAGS := $(if $(CI),-Dwerror=true)
ASAN_FLAGS := -Db_sanitize=address,undefined -Db_lundef=false -Doptimization=1 -Dinit_libc=glibc

all: build python

build:
	@tools/setup build
	@test -f build/build.ninja || meson setup $(MESON_FLAGS) build
	ninja -j$(JOBS) -C build

PROGRAMS := build egress egress-tls engine http init otlp serve store
# Installed from a wheel as users install it, except that the programs come from build/; without build isolation, so that it works without a network. It is built in build-python.
python: build
	@tools/setup venv .venv $(VENV_PACKAGES)
	@test ! -e .git || tools/setup venv .venv-lint $(LINT_PACKAGES)
	@$(MAKE) --no-print-directory .venv/.installed

.venv/.installed: pyproject.toml README.md meson.build meson_options.txt .venv/.requirements $(wildcard python/rollbox/* python/rollbox/*/*) build/librollbox.so build/rollbox $(wildcard $(PROGRAMS:%=build/rollbox-%))
	$(INSTALL) --config-settings=build-dir=build-python --config-settings=setup-args=-Dprograms=$(CURDIR)/build .
	@touch $@

# The same from the sources alone and optimized, as pip compiles it for users. A user's work is then done with nothing but the wheel.
wheel: python
	@rm -rf build-wheel/wheel
	$(PYTHON) -m pip wheel --quiet --no-build-isolation --no-deps --no-index --config-settings=build-dir=build-wheel --wheel-dir build-wheel/wheel .
	@.venv/bin/python tests/check_init_program.py build-wheel/rollbox-init
	@python3 -B tests/wheel.py build-wheel/wheel/*.whl
	$(INSTALL) build-wheel/wheel/*.whl
	$(PYTHON) -m rollbox run -- true

# The source archive and the wheel of a release, in dist/, tested with each Python.
dist:
	@tools/dist

# Debian packages, in dist/, tested in a clean root file system.
deb:
	@tools/deb

# DESTDIR, PREFIX (/usr/local). Compiled anew only when the prefix differs from the last time: the programs know where their libexec is.
PREFIX ?= /usr/local
install:
	@tools/setup build
	@if [ -f build-install/build.ninja ]; then meson configure -Dprefix=$(PREFIX) $(INSTALL_FLAGS) build-install; \
	    else meson setup -Dbuildtype=release -Dtests=false -Dprefix=$(PREFIX) $(INSTALL_FLAGS) build-install >/dev/null; fi
	ninja -j$(JOBS) -C build-install
	meson install -C build-install --quiet $(if $(DESTDIR),--destdir $(abspath $(DESTDIR)))

# With the address and undefined-behaviour sanitizers; for the unit tests and the corpora. Its init is linked with the other C library.
build-asan: build
	@test -f build-asan/build.ninja || meson setup $(MESON_FLAGS) $(ASAN_FLAGS) build-asan >/dev/null
	ninja -j$(JOBS) -C build-asan
.PHONY: build-asan

check: all build-asan
	@tools/setup check
	@tools/setup format || true
	@tools/setup venv .venv-lint $(LINT_PACKAGES)
	@$(PYTHON) -B tools/check

# The Python package alone: ruff and mypy --strict, as `make check` has it among its structure tests.
lint:
	@tools/setup venv .venv-lint $(LINT_PACKAGES)
	@python3 -B tests/check_python_imports.py
	@python3 -B tests/check_python_lint.py

# The site of docs/ in build/site, with the Python and C API; every link is checked. The packages are fetched once.
CLIENT_PACKAGES := requests "httpx[http2]" aiohttp aiodns grpcio
DOCS_PACKAGES := mkdocs==1.6.1 mkdocs-material==9.8.2 mkdocstrings==1.0.8 mkdocstrings-python==2.0.11
docs:
	@tools/setup venv .venv-docs $(DOCS_PACKAGES)
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict
	@echo "build/site/index.html"

demo: all
	@$(PYTHON) examples/reward.py examples/problems.jsonl
	@echo; echo 'An agent in one sandbox: its tree of forks, and the rewards (examples/repo_agent.py)'; echo
	@$(PYTHON) examples/repo_agent.py

# One server, and other people's clients; without torch, which verl's reward does not need.
SERVE_PACKAGES := requests e2b-code-interpreter==2.11.5 mcp==2.3.0
demo-serve: all
	@tools/setup venv .venv-serve $(SERVE_PACKAGES)
	@.venv-serve/bin/python -m pip install --quiet --disable-pip-version-check --no-deps verl==0.9.1
	@PYTHONPATH=$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("platlib"))') .venv-serve/bin/python examples/serve_demo.py

# The adapters against the frameworks themselves, which are large, and what users install: the wheel in a container's image, the Debian
# packages in a clean root (as root). Not part of check, where those tests are skipped.
FRAMEWORKS := e2b==2.63.0 e2b-code-interpreter==2.11.5 e2b-charts ipython matplotlib pandas pytest inspect_ai mini-swe-agent==2.4.6 transformers omegaconf chz
# Their dependencies are torch and Ray, gigabytes that the adapters' tests do not need.
FRAMEWORKS_ALONE := verl==0.9.1 tinker-cookbook==0.6.1
integrations: all
	@tools/setup venv .venv-integrations $(FRAMEWORKS)
	@.venv-integrations/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(FRAMEWORKS_ALONE)
	@PYTHONPATH=$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("platlib"))') .venv-integrations/bin/python -B -m pytest -q -p no:cacheprovider tests/integration/test_integrations*.py
	@$(PYTHON) -B tests/compatibility/adapters.py --update $(if $(RLLM),--rllm $(RLLM))
	-@tools/setup compatibility
	@$(PYTHON) -B tests/compatibility/run.py --update
	@$(PYTHON) -B tests/compatibility/distribution.py --update
	@tools/setup venv .venv-clients $(CLIENT_PACKAGES)
	@PYTHONPATH=tests/integration $(PYTHON) -B tests/integration/network_clients.py --update --python $$(.venv-clients/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
	@tools/setup integrations
	@tools/dist build
	@ROLLBOX_SOAK=1 .venv/bin/pytest -q -p no:cacheprovider tests/integration/test_containerfile.py tests/integration/test_terminal_task.py tests/integration/test_collectors.py
	@tools/deb

bench: all wheel
	@bench/setup
	@$(PYTHON) bench/run.py
	@$(PYTHON) -B bench/machines.py
	@$(PYTHON) -B bench/frameworks.py

# The long tests of the store want the network: one makes an image with debootstrap.
soak: all build-asan
	@$(PYTHON) bench/soak.py
	@$(PYTHON) bench/live_soak.py
	@tools/setup soak
	@ROLLBOX_SOAK=1 .venv/bin/pytest -q -s -p no:cacheprovider tests/integration/test_live_faults.py tests/integration/test_checkpoint_incremental.py tests/integration/test_live_sequences.py
	@ROLLBOX_SOAK=1 .venv/bin/pytest -q -p no:cacheprovider tests/integration/test_live.py tests/integration/test_live_killed.py tests/integration/test_live_memory.py tests/integration/test_live_determinism.py tests/integration/test_interpreter_determinism.py tests/integration/test_cow_fork_dump.py tests/integration/test_trajectories_hostile.py
	@ROLLBOX_SOAK=1 .venv/bin/pytest -q -p no:cacheprovider tests/integration/test_import_records.py
	@ROLLBOX_SOAK=1 .venv/bin/pytest -q -p no:cacheprovider tests/integration/test_store.py tests/integration/test_images.py -k "million or debootstrap"
	@ROLLBOX_SOAK=1 .venv/bin/pytest -q -s -p no:cacheprovider tests/integration/test_session_soak.py
	@ROLLBOX_SOAK=1 .venv/bin/pytest -q -p no:cacheprovider tests/integration/test_determinism*.py

# All capabilities on other kernels, and the Debian packages under systemd, in emulated machines; as root, because the first run makes
# root file systems. Minutes.
.PHONY: kernels
kernels: all
	@tools/setup kernels
	@$(PYTHON) -B tests/kernels/run.py --update
	@tools/deb build
	@$(PYTHON) -B tests/kernels/systemd.py --update

# FUZZ_SECONDS for each target; what they find is left in build-fuzz/found.
FUZZ_SECONDS ?= 60
fuzz:
	@tools/setup build fuzz
	@test -f build-fuzz/build.ninja || CC=clang-14 meson setup --werror -Dfuzz=true $(ASAN_FLAGS) build-fuzz >/dev/null
	ninja -j$(JOBS) -C build-fuzz
	@mkdir -p build-fuzz/found
	@for corpus in tests/fuzz/corpus/*; do name=$$(basename $$corpus); mkdir -p build-fuzz/corpus/$$name; \
	    build-fuzz/tests/fuzz/fuzz-$$name -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=build-fuzz/found/ build-fuzz/corpus/$$name $$corpus || exit 1; done

# The whole tree, by the version of clang-format that `make check` compares with.
format:
	@tools/setup format
	@python3 -B tests/check_format.py --write

clean:
	rm -rf build build-asan build-fuzz build-python build-wheel build-install dist .venv .venv-dist .venv-bench .venv-integrations .venv-clients .venv-lint .venv-docs .venv-adapter-*
