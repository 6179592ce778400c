"""The commands of the pipelines."""
