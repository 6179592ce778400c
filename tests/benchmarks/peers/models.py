"""What the handlers of the comparison write, and what a message is published together with."""

from django.db import models


class Written(models.Model):
    """One row, as a handler or a request writes it."""

    number = models.BigIntegerField()
    text = models.CharField(max_length=300)
    created = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return str(self.number)
