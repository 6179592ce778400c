"""The horizon that one consumer of many has found, for the others. Processes of an older version each find it themselves."""

from django.db import migrations, models

from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0035_writable_nodes"),
    ]

    operations = [
        migrations.CreateModel(
            name="SharedHorizon",
            fields=[
                ("id", models.SmallIntegerField(primary_key=True, serialize=False)),
                ("value", models.BigIntegerField(verbose_name="horizon")),
            ],
            options={
                "verbose_name": "shared horizon",
                "verbose_name_plural": "shared horizon",
                "db_table": "sqlqueue_horizon",
            },
        ),
    ]
