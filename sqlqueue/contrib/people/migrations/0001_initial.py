"""The tables of people's work."""

import django.db.models.deletion
from django.db import migrations, models

from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeTextField


class Migration(migrations.Migration):
    initial = True

    dependencies = [("sqlqueue", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="WorkItem",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("topic", ExactField(max_length=104, verbose_name="topic")),
                ("partition_key", ExactField(db_default="", max_length=255, verbose_name="key")),
                ("message_id", ExactField(max_length=255, verbose_name="id")),
                ("message_offset", models.BigIntegerField(verbose_name="offset")),
                ("consumer_group", ExactField(max_length=100, verbose_name="group")),
                ("fencing_token", models.BigIntegerField(verbose_name="fencing token")),
                ("attempts", models.IntegerField(verbose_name="attempts")),
                ("payload", models.JSONField(verbose_name="payload")),
                ("headers", models.JSONField(null=True, verbose_name="headers")),
                ("body", models.BinaryField(null=True, verbose_name="body")),
                ("published_at", models.DateTimeField(verbose_name="published at")),
                ("reason", UnicodeTextField(null=True, verbose_name="reason")),
                ("form", models.JSONField(null=True, verbose_name="form")),
                (
                    "state",
                    ExactField(
                        choices=[("open", "open"), ("review", "in review"), ("done", "done")],
                        db_default="open",
                        max_length=10,
                        verbose_name="state",
                    ),
                ),
                ("assignee", ExactField(db_default="", max_length=150, verbose_name="assignee")),
                ("author", ExactField(db_default="", max_length=150, verbose_name="author")),
                ("result", models.JSONField(null=True, verbose_name="result")),
                ("version", models.IntegerField(db_default=0, verbose_name="version")),
                ("handed_over_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="handed over at")),
                ("due_at", models.DateTimeField(null=True, verbose_name="due at")),
                ("deferred_until", models.DateTimeField(null=True, verbose_name="deferred until")),
                ("updated_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="updated at")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
            ],
            options={
                "verbose_name": "work item",
                "verbose_name_plural": "work items",
                "db_table": "sqlqueue_work_item",
                "permissions": [
                    ("work_on_workitem", "Can work on work items"),
                    ("assign_workitem", "Can assign work items to others"),
                    ("review_workitem", "Can review work items"),
                ],
                "indexes": [
                    models.Index(fields=["state", "assignee"], name="sqlqueue_work_item_assignee"),
                    models.Index(fields=["state", "topic"], name="sqlqueue_work_item_topic"),
                    models.Index(fields=["state", "due_at"], name="sqlqueue_work_item_due"),
                    models.Index(fields=["finished_at"], name="sqlqueue_work_item_finished"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("message_offset", "consumer_group", "fencing_token"), name="sqlqueue_work_item_message"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="WorkItemEvent",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    ExactField(
                        choices=[
                            ("assigned", "assigned"),
                            ("released", "released"),
                            ("deferred", "deferred"),
                            ("commented", "commented"),
                            ("submitted", "review asked for"),
                            ("sent back", "sent back"),
                            ("approved", "approved"),
                            ("done", "done"),
                        ],
                        max_length=20,
                        verbose_name="kind",
                    ),
                ),
                ("made_by", ExactField(max_length=150, verbose_name="made by")),
                ("assignee", ExactField(db_default="", max_length=150, verbose_name="assignee")),
                ("comment", UnicodeTextField(null=True, verbose_name="comment")),
                ("result", models.JSONField(null=True, verbose_name="result")),
                ("deferred_until", models.DateTimeField(null=True, verbose_name="deferred until")),
                ("made_at", models.DateTimeField(db_default=DatabaseNow(), verbose_name="made at")),
                (
                    "item",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="events",
                        to="sqlqueue_people.workitem",
                        verbose_name="work item",
                    ),
                ),
            ],
            options={
                "verbose_name": "event of a work item",
                "verbose_name_plural": "events of work items",
                "db_table": "sqlqueue_work_item_event",
            },
        ),
        migrations.CreateModel(
            name="MyWork",
            fields=[],
            options={
                "verbose_name": "My work",
                "verbose_name_plural": "My work",
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("sqlqueue_people.workitem",),
        ),
    ]
