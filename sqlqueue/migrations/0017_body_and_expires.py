"""A message's payload may be bytes, and a message may expire.

MySQL has no transaction for it: run again, it goes on where it was.
"""

from django.db import models

from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    # Columns that may be NULL and have no default: every database adds them without a look at the rows.
    dependencies = [
        ("sqlqueue", "0016_periodic"),
    ]

    operations = [
        online_migration.AddMissingField(
            model_name="message", name="body", field=models.BinaryField(null=True, verbose_name="body")
        ),
        online_migration.AddMissingField(
            model_name="message", name="expires_at", field=models.DateTimeField(null=True, verbose_name="expires at")
        ),
        online_migration.AddMissingField(
            model_name="scheduledmessage", name="body", field=models.BinaryField(null=True, verbose_name="body")
        ),
        online_migration.AddMissingField(
            model_name="scheduledmessage",
            name="expires_after",
            field=models.FloatField(
                help_text="seconds from when it is due; empty: never", null=True, verbose_name="expires after"
            ),
        ),
    ]
