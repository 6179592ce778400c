"""Results that handlers return, and the progress of those that run."""

from django.db import migrations, models

import sqlqueue.database.fields
from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0014_named_scheduled"),
    ]

    operations = [
        migrations.CreateModel(
            name="Progress",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                ("consumer_group", sqlqueue.database.fields.ExactField(max_length=100, verbose_name="group")),
                ("message_offset", models.BigIntegerField(verbose_name="offset")),
                ("fencing_token", models.BigIntegerField(verbose_name="fencing token")),
                ("serial", models.BigIntegerField(help_text="of the attempt, in its process", verbose_name="serial")),
                ("done", models.FloatField(verbose_name="done")),
                ("total", models.FloatField(null=True, verbose_name="total")),
                ("note", sqlqueue.database.fields.UnicodeField(db_default="", max_length=255, verbose_name="note")),
                (
                    "updated_at",
                    models.DateTimeField(db_default=sqlqueue.database.fields.DatabaseNow(), verbose_name="updated at"),
                ),
            ],
            options={
                "verbose_name": "progress",
                "verbose_name_plural": "progress",
                "db_table": "sqlqueue_progress",
                "indexes": [models.Index(fields=["updated_at"], name="sqlqueue_progress_updated")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("message_offset", "consumer_group"), name="sqlqueue_progress_message"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Result",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                (
                    "partition_key",
                    sqlqueue.database.fields.ExactField(db_default="", max_length=255, verbose_name="key"),
                ),
                ("message_id", sqlqueue.database.fields.ExactField(max_length=255, verbose_name="id")),
                ("consumer_group", sqlqueue.database.fields.ExactField(max_length=100, verbose_name="group")),
                ("message_offset", models.BigIntegerField(verbose_name="offset")),
                ("outcome", sqlqueue.database.fields.ExactField(max_length=20, verbose_name="outcome")),
                ("attempts", models.IntegerField(verbose_name="attempts")),
                ("result", models.JSONField(null=True, verbose_name="result")),
                ("error", sqlqueue.database.fields.UnicodeTextField(null=True, verbose_name="error")),
                ("started_at", models.DateTimeField(verbose_name="started at")),
                ("finished_at", models.DateTimeField(verbose_name="finished at")),
                ("expires_at", models.DateTimeField(verbose_name="expires at")),
            ],
            options={
                "verbose_name": "result",
                "verbose_name_plural": "results",
                "db_table": "sqlqueue_result",
                "indexes": [models.Index(fields=["expires_at"], name="sqlqueue_result_expires")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("message_id", "topic", "partition_key", "consumer_group"),
                        name="sqlqueue_result_message",
                    )
                ],
            },
        ),
    ]
