"""Partitions may be shared: leases and offset rows have a slice. Those that are there are slice 0 of 1.

MySQL has no transaction for it: run again, it goes on where it was. A table is never without a unique key meanwhile, so
that processes can start and acquire partitions beside it.
"""

from typing import Any

from django.core.management.base import CommandError
from django.db import migrations, models, transaction

from sqlqueue.database import online_migration

# Model, the name and the columns of the unique key without slices, and its name with them.
KEYS = (
    ("PartitionLease", "sqlqueue_lease_partition", ("topic", "consumer_group", "partition"), "sqlqueue_lease_slice"),
    (
        "BatchProgress",
        "sqlqueue_batch_progress_of",
        ("batch", "topic", "consumer_group", "partition", "priority"),
        "sqlqueue_batch_progress_slice",
    ),
    ("Offset", "sqlqueue_offset_stream", ("topic", "consumer_group", "partition", "priority"), "sqlqueue_offset_slice"),
)


def widen(apps: Any, schema_editor: Any) -> None:
    for name, former, columns, wider in KEYS:
        model = apps.get_model("sqlqueue", name)
        online_migration.replace_unique(schema_editor, model, former, wider, (*columns, "slice"))


def narrow(apps: Any, schema_editor: Any) -> None:
    _add_up(apps.get_model("sqlqueue", "BatchProgress").objects.using(schema_editor.connection.alias))
    for name, former, columns, wider in KEYS:
        model = apps.get_model("sqlqueue", name)
        online_migration.replace_unique(schema_editor, model, wider, former, columns)


def _add_up(progress: Any) -> None:
    """Let what slices have counted for a batch, while there were some, be in one row."""
    (columns,) = (columns for name, _, columns, _ in KEYS if name == "BatchProgress")
    for stream in list(progress.filter(slice__gt=0).values(*columns).distinct()):
        with transaction.atomic(using=progress.db):
            rows = progress.filter(**stream)
            counts = rows.aggregate(acked=models.Sum("acked"), dead=models.Sum("dead"))
            rows.delete()
            progress.create(**stream, slice=0, acked=int(counts["acked"]), dead=int(counts["dead"]))


def refuse_if_shared(apps: Any, schema_editor: Any) -> None:
    """Raise CommandError, before anything is changed, if a partition has several slices."""
    groups = apps.get_model("sqlqueue", "ConsumerGroup").objects.using(schema_editor.connection.alias)
    shared = groups.filter(sharing__gt=1).values_list("consumer_group", "topic")[:3]
    if found := ", ".join(f"{group} of {topic}" for group, topic in shared):
        raise CommandError(
            f"these groups share their partitions: {found}. Nothing was changed: run their consumers with sharing=1 "
            "until queuegroup shows that, stop them, and migrate again."
        )


class Migration(online_migration.Migration):
    # Columns with a constant default: every database adds them without a look at the rows.
    dependencies = [
        ("sqlqueue", "0025_work_items"),
    ]

    operations = [
        online_migration.AddMissingField(
            model_name="consumergroup",
            name="sharing",
            field=models.SmallIntegerField(db_default=1, help_text="slices of each partition", verbose_name="sharing"),
        ),
        online_migration.AddMissingField(
            model_name="subscriberheartbeat",
            name="sharing",
            field=models.SmallIntegerField(
                db_default=0,
                help_text="slices that its consumer asks for; 0: it needs whole partitions",
                verbose_name="sharing",
            ),
        ),
        online_migration.AddMissingField(
            model_name="offset", name="slice", field=models.SmallIntegerField(db_default=0, verbose_name="slice")
        ),
        online_migration.AddMissingField(
            model_name="offset",
            name="slices",
            field=models.SmallIntegerField(
                db_default=1, help_text="among which the partition is shared", verbose_name="slices"
            ),
        ),
        online_migration.AddMissingField(
            model_name="batchprogress", name="slice", field=models.SmallIntegerField(db_default=0, verbose_name="slice")
        ),
        online_migration.AddMissingField(
            model_name="partitionlease",
            name="slice",
            field=models.SmallIntegerField(db_default=0, verbose_name="slice"),
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                operation
                for name, former, columns, wider in KEYS
                for operation in (
                    migrations.RemoveConstraint(model_name=name.lower(), name=former),
                    migrations.AddConstraint(
                        model_name=name.lower(),
                        constraint=models.UniqueConstraint(fields=(*columns, "slice"), name=wider),
                    ),
                )
            ],
        ),
        migrations.RunPython(widen, narrow, atomic=False),
        # The last one is the first to be undone.
        migrations.RunPython(migrations.RunPython.noop, refuse_if_shared, atomic=False),
    ]
