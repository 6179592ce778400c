"""Since when every group has settled a stream up to an offset."""

from django.db import migrations, models

import sqlqueue.database.fields
from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0026_sharing"),
    ]

    operations = [
        migrations.CreateModel(
            name="AckedMark",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("priority", models.SmallIntegerField(verbose_name="priority")),
                ("offset_acked", models.BigIntegerField(verbose_name="watermark")),
                (
                    "marked_at",
                    models.DateTimeField(db_default=sqlqueue.database.fields.DatabaseNow(), verbose_name="marked at"),
                ),
            ],
            options={
                "verbose_name": "acked mark",
                "verbose_name_plural": "acked marks",
                "db_table": "sqlqueue_acked_mark",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "partition", "priority", "offset_acked"), name="sqlqueue_acked_mark_stream"
                    )
                ],
            },
        ),
    ]
