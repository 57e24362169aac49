#!/bin/sh
# A federation on Flower, whole, on this machine: a real SuperLink behind the proxy, four SuperNodes, TLS and node keys.
# It takes about two minutes, most of which SuperNodes sleep, and leaves its folders where it was started.
set -eu
here=$(dirname "$0")
probekit extract packaged:digits --split train --backbone pixels:8 --name digits
probekit extract packaged:digits --split test --backbone pixels:8 --name digits-test
probekit federate up trial --set digits --nodes 4 -- sh "$here/jobs.sh"
