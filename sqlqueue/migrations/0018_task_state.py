"""The states of tasks of Django's Tasks interface."""

from django.db import migrations, models

import sqlqueue.database.fields
from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0017_body_and_expires"),
    ]

    operations = [
        migrations.CreateModel(
            name="TaskState",
            fields=[
                (
                    "id",
                    sqlqueue.database.fields.ExactField(
                        max_length=64, primary_key=True, serialize=False, verbose_name="id"
                    ),
                ),
                ("backend", sqlqueue.database.fields.ExactField(max_length=100, verbose_name="backend")),
                ("queue", sqlqueue.database.fields.ExactField(max_length=100, verbose_name="queue")),
                ("path", sqlqueue.database.fields.ExactField(max_length=255, verbose_name="task")),
                ("arguments", sqlqueue.database.fields.UnicodeTextField(verbose_name="arguments")),
                ("priority", models.SmallIntegerField(verbose_name="priority")),
                ("run_after", models.DateTimeField(null=True, verbose_name="run after")),
                ("status", sqlqueue.database.fields.ExactField(max_length=10, verbose_name="status")),
                ("enqueued_at", models.DateTimeField(verbose_name="enqueued at")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                ("last_attempted_at", models.DateTimeField(null=True, verbose_name="last attempted at")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("expires_at", models.DateTimeField(null=True, verbose_name="expires at")),
                ("worker_ids", sqlqueue.database.fields.UnicodeTextField(verbose_name="workers")),
                ("errors", sqlqueue.database.fields.UnicodeTextField(verbose_name="errors")),
                ("return_value", sqlqueue.database.fields.UnicodeTextField(null=True, verbose_name="return value")),
                ("kept_for", models.BigIntegerField(null=True, verbose_name="kept for (seconds)")),
                ("failures", models.IntegerField(db_default=0, verbose_name="failures")),
                (
                    "run",
                    sqlqueue.database.fields.ExactField(db_default="", max_length=32, verbose_name="attempt's name"),
                ),
                ("run_offset", models.BigIntegerField(db_default=0, verbose_name="attempt's offset")),
                ("run_token", models.BigIntegerField(db_default=0, verbose_name="attempt's fencing token")),
                ("run_attempt", models.IntegerField(db_default=0, verbose_name="attempt")),
            ],
            options={
                "verbose_name": "task",
                "verbose_name_plural": "tasks",
                "db_table": "sqlqueue_task_state",
                "indexes": [
                    models.Index(fields=["expires_at"], name="sqlqueue_task_expires"),
                    models.Index(fields=["queue", "status", "finished_at"], name="sqlqueue_task_finished"),
                ],
            },
        ),
    ]
