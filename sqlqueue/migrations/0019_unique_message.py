"""The last unique message of each key."""

from django.db import migrations, models

import sqlqueue.database.fields
from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0018_task_state"),
    ]

    operations = [
        migrations.CreateModel(
            name="UniqueMessage",
            fields=[
                (
                    "digest",
                    sqlqueue.database.fields.ExactField(
                        max_length=64, primary_key=True, serialize=False, verbose_name="digest"
                    ),
                ),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                ("partition_key", sqlqueue.database.fields.ExactField(max_length=255, verbose_name="key")),
                ("message_id", sqlqueue.database.fields.ExactField(max_length=255, verbose_name="id")),
                (
                    "published_at",
                    models.DateTimeField(
                        db_default=sqlqueue.database.fields.DatabaseNow(), verbose_name="published at"
                    ),
                ),
            ],
            options={
                "verbose_name": "unique message",
                "verbose_name_plural": "unique messages",
                "db_table": "sqlqueue_unique_message",
            },
        ),
    ]
