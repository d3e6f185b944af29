#!/usr/bin/env bash
# scripts/deps.sh [--lint] [--tidy] [--fuzz] [--clients] [--browser] [--list]: installs the distribution packages that Fathom is built
# from, those that are missing and no others. Debian 12 or Ubuntu 24.04 and later; as root or with sudo. Does nothing when
# all are there.
#
#   --lint   also what scripts/lint.sh needs (clang-format 14)
#   --tidy   also what scripts/lint.sh --tidy needs (clang-tidy 14: about 500 MB installed)
#   --fuzz   also what scripts/fuzz.sh needs (clang with its run-time library)
#   --clients   also what scripts/clients.sh needs (Python with its venv module)
#   --browser   also what scripts/browser.sh needs (Chromium, its driver, selenium, pytest: about 400 MB installed)
#   --list   only prints the names, one a line
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

packages=(
  g++ cmake ninja-build ccache mold pkg-config                 # the toolchain
  libfmt-dev nlohmann-json3-dev libexpected-dev libcli11-dev   # text, JSON, Result, flags
  libboost-dev                                                 # HTTP
  libhwy-dev libedit-dev libxxhash-dev                         # SIMD, line editing, checksums
  libgtest-dev libgmock-dev libpcre2-dev                       # tests
)
list_only=false
for arg in "$@"; do
  case "$arg" in
    --lint) packages+=(clang-format-14) ;;
    --tidy) packages+=(clang-tidy-14) ;;
    --fuzz) packages+=(clang-14 libclang-rt-14-dev) ;;
    --clients) packages+=(python3 python3-venv) ;;
    --browser) packages+=(chromium chromium-driver python3-selenium python3-pytest) ;;
    --list) list_only=true ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown option $arg (see --help)" ;;
  esac
done
if $list_only; then
  printf '%s\n' "${packages[@]}"
  exit 0
fi

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  die "this is not Debian or Ubuntu; install the equivalents of: ${packages[*]}"

# One line a package that dpkg knows; unknown ones are reported on its standard error only.
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
missing=()
for package in "${packages[@]}"; do
  grep -qxF "installed $package" <<<"$installed" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  note "all ${#packages[@]} packages are installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "neither root nor sudo here; as root, run: apt-get install ${missing[*]}"
  as_root=(sudo)
fi
note "installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1 || {
    cat "$log" >&2
    die "apt-get $1 failed; see above"
  }
}
apt update
apt install -y --no-install-recommends "${missing[@]}"
