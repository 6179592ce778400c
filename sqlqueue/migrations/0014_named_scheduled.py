"""When a scheduled message was published and due goes with it into the log; a key's scheduled messages are found by an
index.

MySQL has no transaction for it: run again, it goes on where it was.
"""

from django.db import migrations, models

from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0013_rescheduling_by_key"),
    ]

    operations = [
        online_migration.AddMissingField(
            model_name="message",
            name="published_at",
            field=models.DateTimeField(null=True, verbose_name="published at"),
        ),
        online_migration.AddMissingField(
            model_name="message",
            name="due_at",
            field=models.DateTimeField(null=True, verbose_name="due at"),
        ),
        # The last one: what was interrupted has no index yet.
        migrations.AddIndex(
            model_name="scheduledmessage",
            index=models.Index(fields=["topic", "partition_key"], name="sqlqueue_scheduled_key"),
        ),
    ]
