"""How many messages a group's filter has left out, minute by minute.

MySQL has no transaction for it: run again, it goes on where it was.
"""

from django.db import models

from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0019_unique_message"),
    ]

    operations = [
        online_migration.AddMissingField(
            model_name="activity",
            name="filtered",
            field=models.BigIntegerField(
                db_default=0, help_text="acked without a handler, by its filter", verbose_name="filtered"
            ),
        ),
    ]
