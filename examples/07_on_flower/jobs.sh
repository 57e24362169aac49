#!/bin/sh
# What an operator does once the nodes are connected. Nothing here says Flower: the folder knows how to reach its nodes.
set -eu
probekit federate status trial

# one closed-form round; then client 1 is forgotten exactly, from what the server kept
probekit train --federation trial --ridge 0.001 --run runs/closed
probekit unlearn runs/closed --client 1 --test digits-test
probekit verify runs/closed || test $? -eq 7    # without an anchor from elsewhere, nobody can prove what is current

# rounds of local steps; then client 2 is forgotten by gradient rounds of the clients that stay
probekit train --federation trial --method fedavg --rounds 6 --ridge 0.001 --keep gradients --server-set digits-test --run runs/fedavg
probekit unlearn runs/fedavg --client 2 --method fedremoval-pcg:rounds=3
probekit verify runs/fedavg || test $? -eq 7

probekit compare runs/closed runs/fedavg --test digits-test
