"""Seats on a flight's next departure: a request asks for some, and waits for the reply."""
