#!/usr/bin/env bash
# scripts/fuzz.sh [SECONDS] [TARGET...]: builds the libFuzzer targets with clang and runs each for SECONDS (default 20), or
# only those named (checkpoint, config, ...). New inputs that reach new code are kept in build/fuzz/corpus; an input that
# breaks something is kept in build/fuzz/found, what it broke is printed, and the script ends with 1.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1-}" in -h | --help) usage; exit 0 ;; esac
seconds=${1:-20}
[[ $seconds =~ ^[0-9]+$ ]] || die "SECONDS must be a number, not $seconds (see --help)"
shift || true
scripts/deps.sh --fuzz
build fuzz fuzz_targets
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for program in build/fuzz/bin/fuzz_*; do targets+=("${program##*/fuzz_}"); done
fi
status=0
mkdir -p build/fuzz/found
for target in "${targets[@]}"; do
  [ -x "build/fuzz/bin/fuzz_$target" ] || die "there is no fuzz target $target"
  mkdir -p "build/fuzz/corpus/$target"
  dictionary=fuzz/$target.dict
  [ -f "$dictionary" ] || dictionary=fuzz/json.dict
  seeds=()
  [ ! -d "fuzz/corpus/$target" ] || seeds=("fuzz/corpus/$target")
  note "fuzzing $target for $seconds s"
  log=build/fuzz/$target.log
  if "build/fuzz/bin/fuzz_$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
    -dict="$dictionary" -artifact_prefix="build/fuzz/found/$target-" "build/fuzz/corpus/$target" "${seeds[@]}" >"$log" 2>&1; then
    awk '/^stat::number_of_executed_units/ { n = $2 } /cov: / { c = $4 } END { print "   " n " executions, " c " edges" }' "$log"
  else
    status=1
    grep -vE '^#|" # Uses' "$log" | tail -n 60
  fi
done
exit $status
