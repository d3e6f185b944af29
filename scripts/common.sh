# Sourced by the other scripts: goes to the project's root and says how things are reported. Notes go to standard error,
# so that a script's standard output is its result.

script=$(realpath "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

note() { printf '== %s\n' "$*" >&2; }
die() {
  printf '%s: %s\n' "$(basename "$script")" "$*" >&2
  exit 1
}

# The header comment of the calling script is its --help.
usage() { awk 'NR == 1 { next } /^#/ { sub(/^# ?/, ""); print; next } { exit }' "$script"; }

# Compile jobs: one a core, but never more than memory allows (the heaviest translation unit takes about 1 GiB).
# CMAKE_BUILD_PARALLEL_LEVEL, which cmake reads too, overrides it.
jobs() {
  local cores memory_gib
  cores=$(nproc)
  memory_gib=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
  [ "$memory_gib" -ge 1 ] || memory_gib=1
  echo "${CMAKE_BUILD_PARALLEL_LEVEL:-$((cores < memory_gib ? cores : memory_gib))}"
}

# build PRESET TARGET: configures (silently, unless it fails) and builds. Everything it prints goes to standard error.
build() {
  local log
  note "building $2 ($1) in build/$1"
  log=$(cmake --preset "$1" 2>&1) || {
    printf '%s\n' "$log" >&2
    die "configuring $1 failed; see above"
  }
  cmake --build --preset "$1" --target "$2" --parallel "$(jobs)" >&2 || die "building $1 failed; see above"
}
