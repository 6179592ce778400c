"""Many deliveries are rescheduled with one order, and topics are purged."""

from django.db import migrations, models

import sqlqueue.database.fields
from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0011_topic_overrides"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="topic",
            options={
                "permissions": [("pause_topic", "Can pause and resume topics"), ("purge_topic", "Can purge topics")],
                "verbose_name": "topic",
                "verbose_name_plural": "topics",
            },
        ),
        migrations.AddField(
            model_name="topic",
            name="purged_to",
            field=models.BigIntegerField(
                db_default=0,
                help_text="up to this offset nothing is retained that no group needs",
                verbose_name="purged to",
            ),
        ),
        migrations.CreateModel(
            name="Rescheduling",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                ("consumer_group", sqlqueue.database.fields.ExactField(max_length=100, verbose_name="group")),
                (
                    "which",
                    sqlqueue.database.fields.ExactField(
                        choices=[
                            ("", "all that wait for their time"),
                            ("failing", "failing"),
                            ("postponed", "postponed"),
                        ],
                        db_default="",
                        max_length=10,
                        verbose_name="which",
                    ),
                ),
                (
                    "error",
                    sqlqueue.database.fields.UnicodeField(
                        db_default="",
                        help_text="the last error has this in it; empty: any",
                        max_length=200,
                        verbose_name="error",
                    ),
                ),
                ("above", models.BigIntegerField(db_default=0, verbose_name="above offset")),
                ("through", models.BigIntegerField(verbose_name="up to offset")),
                ("delay", models.FloatField(db_default=0.0, help_text="seconds", verbose_name="delay")),
                (
                    "attempts",
                    models.IntegerField(help_text="empty: as it is", null=True, verbose_name="attempts so far"),
                ),
                (
                    "rate",
                    models.FloatField(
                        help_text="deliveries a second; empty: as fast as it goes", null=True, verbose_name="rate"
                    ),
                ),
                (
                    "state",
                    sqlqueue.database.fields.ExactField(
                        choices=[
                            ("new", "waits for a consumer process"),
                            ("running", "running"),
                            ("done", "done"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                        ],
                        db_default="new",
                        max_length=10,
                        verbose_name="state",
                    ),
                ),
                ("total", models.BigIntegerField(db_default=0, verbose_name="to do")),
                ("done", models.BigIntegerField(db_default=0, verbose_name="done")),
                ("at_partition", models.IntegerField(db_default=-1, verbose_name="at partition")),
                ("at_priority", models.SmallIntegerField(db_default=-1, verbose_name="at priority")),
                ("at_offset", models.BigIntegerField(db_default=-1, verbose_name="at offset")),
                (
                    "ordered_by",
                    sqlqueue.database.fields.UnicodeField(db_default="", max_length=150, verbose_name="ordered by"),
                ),
                ("note", sqlqueue.database.fields.UnicodeField(db_default="", max_length=300, verbose_name="note")),
                (
                    "created_at",
                    models.DateTimeField(db_default=sqlqueue.database.fields.DatabaseNow(), verbose_name="created at"),
                ),
                (
                    "updated_at",
                    models.DateTimeField(db_default=sqlqueue.database.fields.DatabaseNow(), verbose_name="updated at"),
                ),
            ],
            options={
                "verbose_name": "rescheduling",
                "verbose_name_plural": "reschedulings",
                "db_table": "sqlqueue_rescheduling",
                "indexes": [models.Index(fields=["state"], name="sqlqueue_rescheduling_state")],
            },
        ),
    ]
