#!/usr/bin/env bash
# scripts/test.sh [all | --asan | --tsan | --threads] [CTEST OPTION...]: installs what is missing, builds everything and
# runs all tests. It ends with ctest's closing lines.
#
#   scripts/test.sh                   the release build
#   scripts/test.sh --asan            under the address and undefined-behaviour sanitizers
#   scripts/test.sh --tsan            under the thread sanitizer
#   scripts/test.sh --threads         under the thread sanitizer, only the tests of what has threads: builds only these
#   scripts/test.sh all               the first three, one after the other
#   scripts/test.sh --asan -R quant   only the tests whose name contains "quant"
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

presets=(release)
target=all
case "${1-}" in
  all) presets=(release asan tsan); shift ;;
  --asan | --tsan) presets=("${1#--}"); shift ;;
  --threads)
    shift
    presets=(tsan) target=fathom_thread_tests
    set -- -R '^(EngineThreads|Core|Cache|Disk|Server[A-Za-z]*)\.' "$@"
    ;;
  -h | --help) usage; exit 0 ;;
esac
scripts/deps.sh

# The full-size tokenizer is not part of the project: the tests that need it are skipped where none is named, or laid
# beside the project as FOLDER/tokenizer/deepseek-v4.
for folder in ../*/tokenizer/deepseek-v4; do
  if [ -z "${FATHOM_V4_TOKENIZER-}" ] && [ -f "$folder/tokenizer.json" ]; then
    FATHOM_V4_TOKENIZER=$(realpath "$folder")
    export FATHOM_V4_TOKENIZER
    note "the DeepSeek-V4 tokenizer for tests: $FATHOM_V4_TOKENIZER"
  fi
done

for preset in "${presets[@]}"; do
  build "$preset" "$target"
  note "running the tests ($preset)"
  run=(ctest --preset "$preset" --parallel "$(nproc)" --no-tests=error "$@")
  if [ "$preset" = tsan ] && setarch -R true 2>/dev/null; then
    run=(setarch -R "${run[@]}")  # GCC 12's thread sanitizer gives up on kernels that randomise more than 28 bits
  fi
  "${run[@]}"
done
