#!/bin/sh
# A browser for the page tests: any Chromium that is there, else Debian's where it may be installed, else plainly none.
for name in "$HEADSCOPE_CHROMIUM" chromium chromium-browser google-chrome; do
    [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing Debian's chromium for the page tests"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null
fi
command -v chromium >/dev/null 2>&1 || echo "no Chromium found: the tests that open pages in a browser will be skipped"
