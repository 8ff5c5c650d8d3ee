#!/bin/sh
# Write constraints.txt from pyproject.toml, or check that it is current and installs on every supported platform.
#   scripts/lock.sh write [--upgrade]    one universal resolution: Linux, macOS 14+ (arm64), Windows; Python 3.11 to 3.14
#   scripts/lock.sh check                twelve resolutions from wheels alone, with an empty HOME and no configuration
set -eu
cd "$(dirname "$0")/.."
UV=${UV:-uv}
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT

run_uv() {
    # --system-certs: some networks have certificates of their own. torch has wheels for macOS 14 and newer.
    env -i HOME="$home" PATH="$PATH" MACOSX_DEPLOYMENT_TARGET=14.0 "$UV" --system-certs --no-config "$@"
}

write_lock() {
    run_uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --no-annotate \
        --custom-compile-command "make lock" --all-extras --group dev pyproject.toml "$@"
}

case "${1:-}" in
write)
    shift
    write_lock -o constraints.txt "$@"
    ;;
check)
    cp constraints.txt "$home/constraints.txt"
    write_lock -o "$home/constraints.txt" >/dev/null
    diff constraints.txt "$home/constraints.txt" || { echo "constraints.txt is not current: run make lock" >&2; exit 1; }
    for python in 3.11 3.12 3.13 3.14; do
        for platform in x86_64-manylinux_2_28 aarch64-apple-darwin windows; do
            count=$(run_uv pip compile --quiet --only-binary :all: --python-version "$python" --python-platform "$platform" \
                -c constraints.txt --all-extras --group dev --no-annotate --no-header pyproject.toml | grep -c ==)
            echo "Python $python on $platform: $count packages"
        done
    done
    ;;
*)
    sed -n '2,4s/^# *//p' "$0" >&2
    exit 2
    ;;
esac
