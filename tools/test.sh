#!/usr/bin/env bash
# Sets up what is missing, builds everything and runs the tests. Tests that need a GPU run where there is one and
# report themselves as skipped elsewhere. Arguments go to ctest: tools/test.sh -R cache
with_tests=yes
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
build
exec ctest --test-dir build --output-on-failure -j "$(nproc)" "$@"
