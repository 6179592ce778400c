"""The epochs of topics: repartitioning while publishers and consumers run.

MySQL has no transaction for it: run again, it goes on where it was.
"""

from typing import Any

from django.core.management.base import CommandError
from django.db import migrations, models

import sqlqueue.database.fields
from sqlqueue.database import online_migration


def refuse_if_altered(apps: Any, schema_editor: Any) -> None:
    """Raise CommandError, before anything is changed, if the partitions of a topic have been changed: processes of the
    version before would publish into epochs that are closed, and find no message of a later one."""
    layouts = apps.get_model("sqlqueue", "Layout").objects.using(schema_editor.connection.alias)
    if names := ", ".join(sorted(set(layouts.values_list("topic", flat=True)))[:3]):
        raise CommandError(
            f"the partitions of these topics have been changed: {names}. Nothing was changed: the version before knows"
            " nothing of that, and would lose messages."
        )


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0030_relayed_ids"),
    ]

    operations = [
        online_migration.AddMissingField(
            model_name="publishgate",
            name="generation",
            field=models.IntegerField(
                db_default=0,
                help_text="of the topics' layouts; who publishes by another one is refused",
                verbose_name="generation",
            ),
        ),
        migrations.CreateModel(
            name="EpochEnd",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                ("epoch", models.IntegerField(verbose_name="epoch")),
                ("end", models.BigIntegerField(verbose_name="end")),
                ("retired_at", models.DateTimeField(null=True, verbose_name="retired at")),
            ],
            options={
                "verbose_name": "end of an epoch",
                "verbose_name_plural": "ends of epochs",
                "db_table": "sqlqueue_epoch_end",
                "constraints": [models.UniqueConstraint(fields=("topic", "epoch"), name="sqlqueue_epoch_end_topic")],
            },
        ),
        migrations.CreateModel(
            name="EpochSlot",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                ("slot", models.SmallIntegerField(verbose_name="slot")),
                ("epoch", models.IntegerField(verbose_name="epoch")),
            ],
            options={
                "verbose_name": "slot of an epoch",
                "verbose_name_plural": "slots of epochs",
                "db_table": "sqlqueue_epoch_slot",
                "constraints": [models.UniqueConstraint(fields=("topic", "slot"), name="sqlqueue_epoch_slot_topic")],
            },
        ),
        migrations.CreateModel(
            name="Layout",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                ("generation", models.IntegerField(verbose_name="generation")),
                ("epoch", models.IntegerField(verbose_name="epoch")),
                ("phase", sqlqueue.database.fields.ExactField(max_length=10, verbose_name="phase")),
                ("partitions", models.IntegerField(verbose_name="partitions")),
                ("base", models.IntegerField(verbose_name="base")),
                (
                    "created_at",
                    models.DateTimeField(db_default=sqlqueue.database.fields.DatabaseNow(), verbose_name="created at"),
                ),
            ],
            options={
                "verbose_name": "layout",
                "verbose_name_plural": "layouts",
                "db_table": "sqlqueue_layout",
                "constraints": [
                    models.UniqueConstraint(fields=("topic", "generation"), name="sqlqueue_layout_generation")
                ],
            },
        ),
        migrations.RunPython(migrations.RunPython.noop, refuse_if_altered, elidable=True),
    ]
