"""Payments through a bank, an outside service that takes few requests."""
