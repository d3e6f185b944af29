#!/usr/bin/env bash
# scripts/build.sh: installs what is missing, builds a release of Fathom without its tests, and prints the path of the
# fathom program as its last line. Notes and compiler output go to standard error:
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
build release fathom
printf '%s\n' "$PWD/build/release/bin/fathom"
