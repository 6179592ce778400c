"""Periodic schedules, one row for each."""

from django.db import migrations, models

import sqlqueue.database.fields
from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0015_results"),
    ]

    operations = [
        migrations.CreateModel(
            name="PeriodicSchedule",
            fields=[
                (
                    "name",
                    sqlqueue.database.fields.ExactField(
                        max_length=100, primary_key=True, serialize=False, verbose_name="name"
                    ),
                ),
                ("definition", sqlqueue.database.fields.UnicodeTextField(verbose_name="definition")),
                ("digest", sqlqueue.database.fields.ExactField(max_length=16, verbose_name="digest")),
                (
                    "superseded",
                    sqlqueue.database.fields.ExactField(
                        db_default="",
                        help_text="digests of the definitions that this one has replaced",
                        max_length=340,
                        verbose_name="superseded",
                    ),
                ),
                ("paused", models.BooleanField(db_default=False, verbose_name="paused")),
                (
                    "declared_at",
                    models.DateTimeField(db_default=sqlqueue.database.fields.DatabaseNow(), verbose_name="declared at"),
                ),
                ("attended_until", models.DateTimeField(verbose_name="attended until")),
                (
                    "ticked_to",
                    models.DateTimeField(
                        help_text="all ticks up to this time are published or passed over", verbose_name="ticked to"
                    ),
                ),
                ("next_tick", models.DateTimeField(verbose_name="next tick")),
                ("last_tick", models.DateTimeField(null=True, verbose_name="last tick")),
                ("last_published_at", models.DateTimeField(null=True, verbose_name="last published at")),
                ("refusal", sqlqueue.database.fields.UnicodeTextField(null=True, verbose_name="refusal")),
            ],
            options={
                "verbose_name": "periodic schedule",
                "verbose_name_plural": "periodic schedules",
                "db_table": "sqlqueue_periodic_schedule",
                "permissions": [
                    ("pause_periodicschedule", "Can pause and resume periodic schedules"),
                    ("run_periodicschedule", "Can run periodic schedules now"),
                ],
            },
        ),
    ]
