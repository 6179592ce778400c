"""Many subscribers and partitions: a process finds out from one row of each process whom it shares with, and reads only
the leases that are free or have expired. What one process of all is to do now and then has a row that says when.

Rows that are there, and those of processes that still run an older version, speak for themselves alone.
"""

from django.db import migrations, models

import sqlqueue.database.fields
from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0031_epochs"),
    ]

    operations = [
        online_migration.AddMissingField(
            model_name="subscriberheartbeat",
            name="cohort",
            field=sqlqueue.database.fields.ExactField(
                db_default="alone",
                help_text="a digest of all that it serves, in one of its rows",
                max_length=40,
                verbose_name="cohort",
            ),
        ),
        migrations.AddIndex(
            model_name="subscriberheartbeat",
            index=models.Index(fields=["cohort"], name="sqlqueue_heartbeat_cohort"),
        ),
        migrations.AddIndex(
            model_name="partitionlease",
            index=models.Index(fields=["topic", "consumer_group", "valid_until"], name="sqlqueue_lease_until"),
        ),
        migrations.CreateModel(
            name="Duty",
            fields=[
                (
                    "name",
                    sqlqueue.database.fields.ExactField(
                        max_length=30, primary_key=True, serialize=False, verbose_name="name"
                    ),
                ),
                ("began_at", models.DateTimeField(verbose_name="began at")),
            ],
            options={"verbose_name": "duty", "verbose_name_plural": "duties", "db_table": "sqlqueue_duty"},
        ),
    ]
