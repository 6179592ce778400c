"""Collected messages, with their outcomes."""

from django.db import migrations, models

import sqlqueue.database.fields
from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0022_served_partitions"),
    ]

    operations = [
        migrations.CreateModel(
            name="CollectedMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("message_offset", models.BigIntegerField(verbose_name="offset")),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("priority", models.SmallIntegerField(verbose_name="priority")),
                ("partition_key", sqlqueue.database.fields.ExactField(max_length=255, verbose_name="key")),
                ("message_id", sqlqueue.database.fields.ExactField(max_length=255, verbose_name="id")),
                ("payload", models.JSONField(verbose_name="payload")),
                ("headers", models.JSONField(null=True, verbose_name="headers")),
                ("body", models.BinaryField(null=True, verbose_name="body")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                ("published_at", models.DateTimeField(null=True, verbose_name="published at")),
                ("due_at", models.DateTimeField(null=True, verbose_name="due at")),
                ("target_group", sqlqueue.database.fields.ExactField(max_length=100, verbose_name="target group")),
                (
                    "outcomes",
                    models.JSONField(
                        help_text="by group: acked or dead, and the attempts as far as a receipt says",
                        verbose_name="outcomes",
                    ),
                ),
                (
                    "collected_at",
                    models.DateTimeField(
                        db_default=sqlqueue.database.fields.DatabaseNow(), verbose_name="collected at"
                    ),
                ),
                ("kept_until", models.DateTimeField(verbose_name="kept until")),
            ],
            options={
                "verbose_name": "collected message",
                "verbose_name_plural": "collected messages",
                "db_table": "sqlqueue_collected_message",
                "indexes": [
                    models.Index(fields=["kept_until"], name="sqlqueue_collected_until"),
                    models.Index(fields=["message_offset"], name="sqlqueue_collected_offset"),
                    models.Index(fields=["message_id"], name="sqlqueue_collected_id"),
                    models.Index(fields=["partition_key"], name="sqlqueue_collected_key"),
                ],
            },
        ),
    ]
