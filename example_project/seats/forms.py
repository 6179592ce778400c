"""The form on the home page."""

from __future__ import annotations

from django import forms


class ReservationForm(forms.Form):
    """Some seats on a flight."""

    flight = forms.CharField(max_length=20, initial="UA-1545")
    seats = forms.IntegerField(min_value=1, max_value=9, initial=2)
