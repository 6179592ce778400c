"""What atomic handlers write: a row for each message they have handled. Nothing keeps it from being there twice."""

from django.db import models


class Entry(models.Model):
    """The effect of one delivery."""

    group = models.CharField(max_length=50)
    message = models.CharField(max_length=100)
    attempt = models.IntegerField()

    class Meta:
        app_label = "soak"

    def __str__(self) -> str:
        return f"{self.group} {self.message} {self.attempt}"
