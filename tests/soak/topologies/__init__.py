"""Topologies: several database servers under one run, with failovers, or with databases. `make soak
TOPOLOGY=databases`, and so on."""
