"""A floor to build on: an ordinary Flower app on the public names of probekit."""
