#!/usr/bin/env bash
# scripts/demo.sh [RUN OPTION...]: installs what is missing, builds a release and lets the small model that comes with
# Fathom tell a story on this machine's CPU. Options go to `fathom run`:
#
#   scripts/demo.sh
#   scripts/demo.sh -p "Tell me a story about a fox." -n 200
#   scripts/demo.sh --raw -p "Once upon a time, there was a little" --seed 7
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1-}" in
  -h | --help) usage; exit 0 ;;
esac
[ $# -gt 0 ] || set -- -p "Tell me a story about a fox." -n 200
scripts/deps.sh
build release fathom  # without the CUDA backend, whose kernels take minutes to compile
{ printf '== fathom run'; printf ' %q' "$@"; echo; } >&2
FATHOM_DEVICE=${FATHOM_DEVICE:-cpu} exec build/release/bin/fathom run "$@"
