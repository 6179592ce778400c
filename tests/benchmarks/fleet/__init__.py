"""Hundreds of subscribers and thousands of partitions: `make benchmark-fleet`."""
