"""The tables say something new of a message that waits behind its key, so no process of version 0.1 may go on.

Stop the consumers, migrate, start them. One that was forgotten fails at its next heartbeat: the lease's expiry has
another name, its tokens are stale, and nobody holds a lease.
"""

from typing import Any

from django.db import migrations, models
from django.db.models import F

import sqlqueue.database.fields
from sqlqueue.database import online_migration


def revoke(apps: Any, schema_editor: Any) -> None:
    """Raise every fencing token and free every lease; what was handed out is recovered by those who take them next."""
    alias = schema_editor.connection.alias
    leases = apps.get_model("sqlqueue", "PartitionLease").objects.using(alias)
    offsets = apps.get_model("sqlqueue", "Offset").objects.using(alias)
    leases.update(fencing_token=F("fencing_token") + 1, holder="", valid_until=None)
    offsets.update(fencing_token=F("fencing_token") + 1)
    apps.get_model("sqlqueue", "SubscriberHeartbeat").objects.using(alias).all().delete()


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0005_overview"),
    ]

    operations = [
        migrations.CreateModel(
            name="BlockedRange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("consumer_group", sqlqueue.database.fields.ExactField(max_length=100, verbose_name="group")),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("partition_key", sqlqueue.database.fields.ExactField(max_length=255, verbose_name="key")),
                (
                    "low",
                    models.BigIntegerField(
                        help_text="the range begins behind this offset; it only rises", verbose_name="low"
                    ),
                ),
                ("high", models.BigIntegerField(help_text="the last offset of the range", verbose_name="high")),
                (
                    "messages",
                    models.BigIntegerField(
                        db_default=0, help_text="about how many wait; for display only", verbose_name="messages"
                    ),
                ),
            ],
            options={
                "verbose_name": "blocked range",
                "verbose_name_plural": "blocked ranges",
                "db_table": "sqlqueue_blocked_range",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "consumer_group", "partition", "priority", "partition_key"),
                        name="sqlqueue_blocked_range_key",
                    )
                ],
            },
        ),
        migrations.AddField(
            model_name="subscriberheartbeat",
            name="server",
            field=models.CharField(
                db_default="",
                help_text="the identity of the server that it writes to",
                max_length=100,
                verbose_name="database server",
            ),
        ),
        migrations.AddField(
            model_name="subscriberheartbeat",
            name="version",
            field=models.CharField(db_default="", help_text="of sqlqueue", max_length=40, verbose_name="version"),
        ),
        migrations.RenameField(model_name="partitionlease", old_name="expires_at", new_name="valid_until"),
        migrations.AlterField(
            model_name="partitionlease",
            name="valid_until",
            field=models.DateTimeField(null=True, verbose_name="valid until"),
        ),
        migrations.RunPython(revoke, migrations.RunPython.noop),
    ]
