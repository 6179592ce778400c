"""Batches: groups of work, their groups, parts and progress."""

from django.db import migrations, models

import sqlqueue.database.fields
from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0023_collected_message"),
    ]

    operations = [
        migrations.CreateModel(
            name="Batch",
            fields=[
                (
                    "id",
                    sqlqueue.database.fields.ExactField(
                        max_length=32, primary_key=True, serialize=False, verbose_name="id"
                    ),
                ),
                ("name", sqlqueue.database.fields.UnicodeField(db_default="", max_length=255, verbose_name="name")),
                ("parent", sqlqueue.database.fields.ExactField(db_default="", max_length=32, verbose_name="parent")),
                ("callbacks", models.JSONField(verbose_name="callbacks")),
                (
                    "created_at",
                    models.DateTimeField(db_default=sqlqueue.database.fields.DatabaseNow(), verbose_name="created at"),
                ),
                ("deadline_at", models.DateTimeField(null=True, verbose_name="deadline")),
                ("sealed_at", models.DateTimeField(null=True, verbose_name="sealed at")),
                ("failed_at", models.DateTimeField(null=True, verbose_name="failed at")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("succeeded_at", models.DateTimeField(null=True, verbose_name="succeeded at")),
                ("cancelled_at", models.DateTimeField(null=True, verbose_name="cancelled at")),
                ("ended_at", models.DateTimeField(null=True, verbose_name="ended at")),
                ("over", models.BooleanField(db_default=False, verbose_name="over")),
            ],
            options={
                "verbose_name": "batch",
                "verbose_name_plural": "batches",
                "db_table": "sqlqueue_batch",
                "permissions": [("cancel_batch", "Can cancel batches")],
                "indexes": [
                    models.Index(fields=["over", "id"], name="sqlqueue_batch_over"),
                    models.Index(fields=["parent"], name="sqlqueue_batch_parent"),
                    models.Index(fields=["ended_at"], name="sqlqueue_batch_ended"),
                    models.Index(fields=["over", "created_at", "id"], name="sqlqueue_batch_created"),
                ],
            },
        ),
        migrations.CreateModel(
            name="BatchGroup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("batch", sqlqueue.database.fields.ExactField(max_length=32, verbose_name="batch")),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                ("consumer_group", sqlqueue.database.fields.ExactField(max_length=100, verbose_name="group")),
            ],
            options={
                "verbose_name": "batch's group",
                "verbose_name_plural": "batches' groups",
                "db_table": "sqlqueue_batch_group",
                "constraints": [
                    models.UniqueConstraint(fields=("batch", "topic", "consumer_group"), name="sqlqueue_batch_group_of")
                ],
            },
        ),
        migrations.CreateModel(
            name="BatchPart",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("batch", sqlqueue.database.fields.ExactField(max_length=32, verbose_name="batch")),
                ("part", models.BigIntegerField(verbose_name="part")),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                (
                    "target_group",
                    sqlqueue.database.fields.ExactField(db_default="", max_length=100, verbose_name="group"),
                ),
                ("added", models.BigIntegerField(db_default=0, verbose_name="added")),
                ("replayed", models.BigIntegerField(db_default=0, verbose_name="replayed")),
            ],
            options={
                "verbose_name": "batch's part",
                "verbose_name_plural": "batches' parts",
                "db_table": "sqlqueue_batch_part",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("batch", "part", "topic", "target_group"), name="sqlqueue_batch_part_of"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="BatchProgress",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("batch", sqlqueue.database.fields.ExactField(max_length=32, verbose_name="batch")),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                ("consumer_group", sqlqueue.database.fields.ExactField(max_length=100, verbose_name="group")),
                ("partition", models.IntegerField(verbose_name="partition")),
                ("priority", models.SmallIntegerField(verbose_name="priority")),
                ("acked", models.BigIntegerField(verbose_name="acked")),
                ("dead", models.BigIntegerField(verbose_name="dead")),
            ],
            options={
                "verbose_name": "batch's progress",
                "verbose_name_plural": "batches' progress",
                "db_table": "sqlqueue_batch_progress",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("batch", "topic", "consumer_group", "partition", "priority"),
                        name="sqlqueue_batch_progress_of",
                    )
                ],
            },
        ),
    ]
