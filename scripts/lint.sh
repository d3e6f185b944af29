#!/usr/bin/env bash
# scripts/lint.sh [--fix | --globals | --tidy]: checks what the compiler does not: the format, the arrows between rooms, and the
# rules of CONTRIBUTING.md that a machine can see. Prints each finding as FILE:LINE: what is wrong.
#
#   --fix       formats the files instead of complaining about them, then checks the rest
#   --globals   also lets clang-tidy look for mutable globals and initialisers that may throw before main (a minute)
#   --tidy      only clang-tidy, with everything that .clang-tidy asks for, tests included (many minutes)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

fix=false
globals=false
case "${1-}" in
  "") ;;
  --fix) fix=true ;;
  --globals) globals=true ;;
  --tidy)
    scripts/deps.sh --tidy
    build tidy all
    exit 0
    ;;
  -h | --help) usage; exit 0 ;;
  *) die "unknown option $1 (see --help)" ;;
esac
if $globals; then scripts/deps.sh --lint --tidy; else scripts/deps.sh --lint; fi

# Which rooms a room may include from. ARCHITECTURE.md explains the table; a change there is a change here.
declare -A uses=(
  [base]=""
  [tensor]="base"
  [quant]="base tensor"
  [checkpoint]="base tensor quant"
  [text]="base"
  [ops]="base tensor quant"
  [parallel]="base tensor"
  [model]="base tensor quant checkpoint ops parallel"
  [cache]="base tensor ops model"
  [engine]="base tensor ops model cache parallel"
  [grammar]="base text engine"
  [server]="base text engine grammar"
  [cli]="base tensor quant checkpoint text ops parallel model cache engine grammar server"
)
# What their tests may include besides: the golden vectors are safetensors files.
tests_use="tensor checkpoint"

# Files under version control, and new ones that git does not ignore, as git quotes nothing.
files() { git -c core.quotePath=false ls-files --cached --others --exclude-standard -- "$@" | while IFS= read -r f; do
  if [ -f "$f" ]; then printf '%s\n' "$f"; fi; done; }
mapfile -t sources < <(files '*.h' '*.cc' '*.cu' '*.cuh')
mapfile -t in_rooms < <(files 'src/*.h' 'src/*.cc' 'src/*.cu' 'src/*.cuh')
mapfile -t texts < <(files . ':!tests/data' ':!models' ':!LICENSE')

findings=$(mktemp)
trap 'rm -f "$findings"' EXIT
# report MESSAGE: turns grep's FILE:LINE:TEXT lines into findings.
report() { sed -E "s|^([^:]+:[0-9]+):.*|\1: $1|" >>"$findings"; }
# A grep that finds nothing is content, not an error.
search() { grep -nHE "$@" || true; }

# 1. Format.
if $fix; then
  clang-format-14 -i "${sources[@]}"
fi

# 2. Arrows. An include in quotes names a file from src/, that is, its room first.
for room in src/*/; do
  room=$(basename "$room")
  [ -n "${uses[$room]+known}" ] || echo "src/$room:1: a room that scripts/lint.sh and ARCHITECTURE.md do not know" >>"$findings"
done
while IFS=: read -r file line include; do
  room=${file#src/}
  room=${room%%/*}
  target=$(sed -E 's/^[^"]*"([^"]*)".*/\1/' <<<"$include")
  allowed=" $room ${uses[$room]-} "
  case "$file" in *_test.cc | *_bench.cc) allowed+="$tests_use " ;; esac
  if [[ $allowed != *" ${target%%/*} "* ]]; then
    echo "$file:$line: $room may not include \"$target\" (allowed rooms:$allowed)" >>"$findings"
  fi
done < <(search '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "${in_rooms[@]}")

# 3. Vendor headers stay in files named _cuda and in the plug-in's own folders.
mapfile -t portable < <(printf '%s\n' "${sources[@]}" | grep -vE '_cuda(_[a-z0-9_]+)?\.(h|cc|cu|cuh)$|/cuda/|\.cuh?$')
search '#[[:space:]]*include[[:space:]]*[<"](cu(da|blas|sparse|rand|fft|dnn|file|tensor|solver)|nccl|nv(ml|rtc|tx)|cub/|cute/|cutlass|thrust/|mma\.h)' \
  "${portable[@]}" | report "a CUDA header outside a _cuda file"

# 4. The environment is read in src/cli and nowhere else. Tests may ask it where large test data is.
mapfile -t outside_cli < <(printf '%s\n' "${in_rooms[@]}" | grep -vE '^src/cli/|_test\.cc$|/test_support\.h$')
search '\b(secure_)?getenv[[:space:]]*\(|\benviron\b' "${outside_cli[@]}" | report "the environment is read only in src/cli"

# 5. A file of more than 600 lines says in its first twenty why it is one file ("Long file: ...").
wc -l "${sources[@]}" | awk '$1 > 600 && $2 != "total" { print $1, $2 }' | while read -r lines file; do
  head -n 20 "$file" | grep -q 'Long file: ' || echo "$file:1: $lines lines, more than 600, and no \"Long file: why\"" >>"$findings"
done

# 6. Nothing names a folder of somebody's machine.
search '(^|[^[:alnum:]_.~-])/(home|root|Users|work)/|\.\./shared\b' "${texts[@]}" | report "a path of one machine"

# 7. No work left as a comment.
search '\b(TODO|FIXME|XXX)\b' "${sources[@]}" | report "an open end: finish it or file an issue"

# 8. No mutable globals, no throwing static initialisers. Tests are free of this rule: their macros register statically.
if $globals; then
  cmake --preset tidy >/dev/null
  cmake --build build/tidy --target fathom_server_kPageFiles fathom_server_kOpenapiFiles >/dev/null  # sources that are made
  tidy_log=build/tidy/globals.log
  status=0
  sed -nE 's/^ *"file": "(.*)",?$/\1/p' build/tidy/compile_commands.json | sort -u |
    grep -vE '_(test|bench)\.cc$|/tests/|/build/' | tr '\n' '\0' |
    xargs -0 -n 1 -P "$(jobs)" clang-tidy-14 -p build/tidy --quiet \
      --extra-arg=-Wno-everything --checks='-*,cppcoreguidelines-avoid-non-const-global-variables,cert-err58-cpp' >"$tidy_log" 2>&1 || status=$?
  tidy_findings=$(awk -v root="$PWD/" 'index($0, root) == 1 && / error: / { print substr($0, length(root) + 1) }' "$tidy_log" | sort -u)
  if [ -n "$tidy_findings" ]; then
    printf '%s\n' "$tidy_findings" >>"$findings"
  elif [ $status -ne 0 ]; then
    tail -n 20 "$tidy_log" >&2
    die "clang-tidy failed without a finding (status $status; $tidy_log)"
  fi
fi

if [ -s "$findings" ]; then
  cat "$findings"
  die "$(wc -l <"$findings") findings"
fi
note "lint: ${#sources[@]} sources, no findings"
