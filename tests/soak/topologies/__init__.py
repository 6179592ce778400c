"""Topologies: several database servers under one run, with failovers. `make soak TOPOLOGY=mariadb-async`, and so on."""
