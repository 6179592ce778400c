"""Refunds of cancelled flights: a handler pays what is small, and a person decides the rest."""
