"""Topologies: several database servers under one run, with failovers, or with shards. `make soak TOPOLOGY=shards`, and
so on."""
