#!/usr/bin/env bash
# Sets up what is missing, then runs `tilewright ARGS`. Without arguments: the main job on an example, verified.
#   tools/run.sh
#   tools/run.sh run --heads 8:2 --seq 2048 --dim 128 --causal --verify
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
build tilewright
if [ $# -eq 0 ]; then
  # Attention with sinks and a sliding window, GQA, forward and backward.
  set -- run --heads 4:2 --seq 1536 --dim 64 --mask 'k < 64 || k <= q && q - k < 400' --softcap 30 --backward --verify --picture
  echo "tilewright ${*@Q}" >&2
fi
exec build/bin/tilewright "$@"
