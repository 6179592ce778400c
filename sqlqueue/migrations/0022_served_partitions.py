"""Which partitions a subscriber serves.

MySQL has no transaction for it: run again, it goes on where it was.
"""

import sqlqueue.database.fields
from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0021_flow"),
    ]

    operations = [
        online_migration.AddMissingField(
            model_name="subscriberheartbeat",
            name="partitions",
            field=sqlqueue.database.fields.ExactField(
                db_default="", help_text="that it serves; empty: all", max_length=200, verbose_name="partitions"
            ),
        ),
    ]
