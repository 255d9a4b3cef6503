#!/bin/sh
# Installs the Debian packages that are missing, and only those.
#   deploy/setup.sh run    what building and serving needs
#   deploy/setup.sh test   that, and what the tests need
# Root, or a user with sudo, is needed only if a package is missing.
set -eu

run="gcc make libc6-dev libmicrohttpd-dev libcjson-dev libpcre2-dev
libutf8proc-dev libssl-dev libjemalloc-dev libopenblas-dev python3
python3-venv ca-certificates"
test="clang clang-format clang-tidy libclang-rt-14-dev libcmocka-dev git
util-linux"

case "${1:-}" in
run) wanted=$run ;;
test) wanted="$run $test" ;;
*)
    echo "usage: deploy/setup.sh run|test" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null; then
    echo "setup: this is no Debian system; install what corresponds to:" $wanted >&2
    exit 0
fi

missing=
for p in $wanted; do
    state=$(dpkg-query -W -f '${Status}' "$p" 2>/dev/null || true)
    [ "$state" = "install ok installed" ] || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "setup: step 'packages' failed: not root and no sudo." >&2
        echo "setup: as root, run: apt-get install$missing" >&2
        exit 1
    fi
    as_root=sudo
fi

fail() {
    echo "setup: step '$1' failed. Check the network and /etc/apt/sources.list," >&2
    echo "setup: run '$2' by hand to see more, then start again." >&2
    exit 1
}

echo "setup: installing$missing" >&2
$as_root apt-get update -q >&2 || fail "package lists" "apt-get update"
$as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends $missing >&2 ||
    fail "packages" "apt-get install$missing"
