# SPDX-License-Identifier: Apache-2.0
.DELETE_ON_ERROR:
all: build

# The list of sources is looked up by meson when it configures: configure again when it changed.
.PHONY: all build
build:
	@test -f build/build.ninja || meson setup build
	@find src tests man completions -name '*.[ch]' -o -name '*.scd' 2>/dev/null | sort > build/sources.new
	@cmp -s build/sources.new build/sources || { meson setup --reconfigure build >/dev/null && mv build/sources.new build/sources; }
	ninja -k 0 -j2 -C build
