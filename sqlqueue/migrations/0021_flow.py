"""Active hours and limits of groups.

MySQL has no transaction for it: run again, it goes on where it was.
"""

from django.db import migrations, models

import sqlqueue.database.fields
from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    # Columns that may be NULL and have no default: every database adds them without a look at the rows.
    dependencies = [
        ("sqlqueue", "0020_filtered"),
    ]

    operations = [
        online_migration.AddMissingField(
            model_name="consumergroup",
            name="flow",
            field=sqlqueue.database.fields.UnicodeTextField(null=True, verbose_name="active hours and limits"),
        ),
        online_migration.AddMissingField(
            model_name="consumergroup",
            name="flow_overrides",
            field=sqlqueue.database.fields.UnicodeTextField(null=True, verbose_name="overridden hours and limits"),
        ),
        online_migration.AddMissingField(
            model_name="consumergroup", name="tokens", field=models.FloatField(null=True, verbose_name="tokens")
        ),
        online_migration.AddMissingField(
            model_name="consumergroup",
            name="tokens_at",
            field=models.DateTimeField(null=True, verbose_name="tokens counted at"),
        ),
        online_migration.AddMissingField(
            model_name="consumergroup", name="failures", field=models.IntegerField(null=True, verbose_name="failures")
        ),
        online_migration.AddMissingField(
            model_name="consumergroup",
            name="failures_since",
            field=models.DateTimeField(null=True, verbose_name="failures counted since"),
        ),
        online_migration.AddMissingField(
            model_name="consumergroup",
            name="opened_at",
            field=models.DateTimeField(null=True, verbose_name="retry budget spent at"),
        ),
        online_migration.AddMissingField(
            model_name="consumergroup",
            name="trial_at",
            field=models.DateTimeField(null=True, verbose_name="next trial at"),
        ),
        migrations.CreateModel(
            name="LimitShare",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("subscriber", sqlqueue.database.fields.ExactField(max_length=120, verbose_name="subscriber")),
                ("consumer_group", sqlqueue.database.fields.ExactField(max_length=100, verbose_name="group")),
                ("topic", sqlqueue.database.fields.ExactField(max_length=104, verbose_name="topic")),
                ("demand", models.FloatField(verbose_name="demand")),
                ("drew_at", models.DateTimeField(verbose_name="drew at")),
                ("slots", models.IntegerField(verbose_name="slots")),
                ("wanted", models.IntegerField(verbose_name="wanted slots")),
                ("waits_since", models.DateTimeField(null=True, verbose_name="waits since")),
                ("held_back", models.BooleanField(verbose_name="held back")),
                ("taken_at", models.DateTimeField(verbose_name="taken at")),
                ("expires_at", models.DateTimeField(verbose_name="expires at")),
            ],
            options={
                "verbose_name": "share of a limit",
                "verbose_name_plural": "shares of limits",
                "db_table": "sqlqueue_limit_share",
                "indexes": [models.Index(fields=["subscriber"], name="sqlqueue_limit_share_own")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "consumer_group", "subscriber"), name="sqlqueue_limit_share_subscriber"
                    )
                ],
            },
        ),
    ]
