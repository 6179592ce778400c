"""The shards of a topic, and what is on its way to another one.

MySQL has no transaction for it: run again, it goes on where it was.
"""

from typing import Any

from django.core.management.base import CommandError
from django.db import migrations, models

import sqlqueue.database.fields
from sqlqueue.database import online_migration


def refuse_if_sharded(apps: Any, schema_editor: Any) -> None:
    """Raise CommandError, before anything is changed, if messages wait for their shard, or a topic has several."""
    alias = schema_editor.connection.alias
    if waiting := apps.get_model("sqlqueue", "RelayedMessage").objects.using(alias).count():
        raise CommandError(
            f"{waiting} messages wait for their way to another shard. Nothing was changed: let consumers relay them, "
            "and migrate again."
        )
    spread = apps.get_model("sqlqueue", "Topic").objects.using(alias).filter(shards__contains=",")
    if names := ", ".join(spread.order_by("name").values_list("name", flat=True)[:3]):
        raise CommandError(
            f"the keys of these topics are spread over several shards: {names}. Nothing was changed: drain and drop "
            "them, and migrate again."
        )


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0028_finished_work"),
    ]

    operations = [
        online_migration.AddMissingField(
            model_name="topic",
            name="shards",
            field=sqlqueue.database.fields.ExactField(
                db_default="",
                help_text="over which its keys are spread; empty: made before SHARDS",
                max_length=2000,
                verbose_name="shards",
            ),
        ),
        migrations.CreateModel(
            name="RelayedMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("shard", sqlqueue.database.fields.ExactField(max_length=30, verbose_name="shard")),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                ("partition_key", sqlqueue.database.fields.ExactField(max_length=255, verbose_name="key")),
                ("message_id", sqlqueue.database.fields.ExactField(max_length=255, verbose_name="id")),
                ("payload", sqlqueue.database.fields.UnicodeTextField(verbose_name="payload")),
                ("headers", sqlqueue.database.fields.UnicodeTextField(null=True, verbose_name="headers")),
                ("priority", models.SmallIntegerField(verbose_name="priority")),
                ("target_group", sqlqueue.database.fields.ExactField(max_length=100, verbose_name="target group")),
                ("body", models.BinaryField(null=True, verbose_name="body")),
                (
                    "expires_after",
                    models.FloatField(
                        help_text="seconds from when it is due; empty: never", null=True, verbose_name="expires after"
                    ),
                ),
                ("due_at", models.DateTimeField(help_text="empty: at once", null=True, verbose_name="due at")),
                (
                    "created_at",
                    models.DateTimeField(db_default=sqlqueue.database.fields.DatabaseNow(), verbose_name="created at"),
                ),
                ("refused", models.BooleanField(db_default=False, verbose_name="refused")),
                ("refusal", sqlqueue.database.fields.UnicodeTextField(null=True, verbose_name="refusal")),
            ],
            options={
                "verbose_name": "relayed message",
                "verbose_name_plural": "relayed messages",
                "db_table": "sqlqueue_relayed_message",
                "indexes": [models.Index(fields=["refused", "shard", "id"], name="sqlqueue_relayed_order")],
            },
        ),
        migrations.CreateModel(
            name="RelayArrival",
            fields=[
                (
                    "source",
                    sqlqueue.database.fields.ExactField(
                        max_length=30, primary_key=True, serialize=False, verbose_name="shard"
                    ),
                ),
                ("version", models.BigIntegerField(db_default=0, verbose_name="version")),
                ("arrived", sqlqueue.database.fields.UnicodeTextField(null=True, verbose_name="arrived")),
            ],
            options={
                "verbose_name": "relay arrival",
                "verbose_name_plural": "relay arrivals",
                "db_table": "sqlqueue_relay_arrival",
            },
        ),
        migrations.RunPython(migrations.RunPython.noop, refuse_if_sharded, elidable=True),
    ]
