"""What handlers under test leave behind."""

from django.db import models


class Effect(models.Model):
    """One thing that a handler did."""

    name = models.CharField(max_length=200)
    value = models.CharField(max_length=200)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return f"{self.name}={self.value}"
