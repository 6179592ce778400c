"""Spreading a topic over other shards while publishers and consumers run.

MySQL has no transaction for it: run again, it goes on where it was.
"""

from typing import Any

from django.core.management.base import CommandError
from django.db import migrations, models

import sqlqueue.database.fields
from sqlqueue.database import online_migration


def refuse_if_spread(apps: Any, schema_editor: Any) -> None:
    """Raise CommandError, before anything is changed, if the shards of a topic have been changed: processes of the
    version before would look for its keys, and publish them, where they are not any more."""
    layouts = apps.get_model("sqlqueue", "Layout").objects.using(schema_editor.connection.alias)
    if names := ", ".join(sorted(set(layouts.exclude(shards="").values_list("topic", flat=True)))[:3]):
        raise CommandError(
            f"the shards of these topics have been changed: {names}. Nothing was changed: the version before knows"
            " nothing of that, and would lose the order of their keys."
        )


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0033_batches_over_shards"),
    ]

    operations = [
        online_migration.AddMissingField(
            model_name="layout",
            name="shard",
            field=sqlqueue.database.fields.ExactField(db_default="", max_length=30, verbose_name="shard"),
        ),
        online_migration.AddMissingField(
            model_name="layout",
            name="shards",
            field=sqlqueue.database.fields.ExactField(db_default="", max_length=2000, verbose_name="shards"),
        ),
        migrations.CreateModel(
            name="EpochGrant",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                ("consumer_group", sqlqueue.database.fields.ExactField(max_length=100, verbose_name="group")),
                ("shard", sqlqueue.database.fields.ExactField(max_length=30, verbose_name="shard")),
                ("version", models.IntegerField(verbose_name="version")),
                ("revoking", models.BigIntegerField(db_default=0, verbose_name="revoking")),
            ],
            options={
                "verbose_name": "grant of an epoch",
                "verbose_name_plural": "grants of epochs",
                "db_table": "sqlqueue_epoch_grant",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "consumer_group", "shard", "version"), name="sqlqueue_epoch_grant_shard"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="EpochStart",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                ("consumer_group", sqlqueue.database.fields.ExactField(max_length=100, verbose_name="group")),
                ("version", models.IntegerField(verbose_name="version")),
                ("revoked", models.IntegerField(db_default=0, verbose_name="revoked")),
                (
                    "granted",
                    sqlqueue.database.fields.ExactField(db_default="", max_length=2000, verbose_name="granted"),
                ),
            ],
            options={
                "verbose_name": "start of an epoch",
                "verbose_name_plural": "starts of epochs",
                "db_table": "sqlqueue_epoch_start",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "consumer_group", "version"), name="sqlqueue_epoch_start_group"
                    )
                ],
            },
        ),
        migrations.RunPython(migrations.RunPython.noop, refuse_if_spread, elidable=True),
    ]
