"""Typed payloads: what a topic's messages look like in Python, checked at publish and at delivery."""
