#!/usr/bin/env bash
# scripts/build.sh: installs what is missing, builds a release of Fathom without its tests, and prints the path of the
# fathom program as its last line. Where nvcc is, the CUDA backend comes to lie beside it. Notes and compiler output go to standard error:
#
#   fathom=$(scripts/build.sh) && "$fathom" --help
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1-}" in
  "") ;;
  -h | --help) usage; exit 0 ;;
  *) die "takes no arguments (see --help)" ;;
esac
scripts/deps.sh
build release fathom_program
printf '%s\n' "$PWD/build/release/bin/fathom"
