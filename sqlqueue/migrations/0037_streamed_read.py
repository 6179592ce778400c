"""A Spark stream's tasks note that they read the group's last batch, so that a batch that its sink has skipped is not
settled."""

from django.db import migrations, models

import sqlqueue.database.fields
from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0036_shared_horizon"),
    ]

    operations = [
        migrations.AddField(
            model_name="consumergroup",
            name="streamed_by",
            field=sqlqueue.database.fields.ExactField(db_default="", max_length=32),
        ),
        migrations.AddField(
            model_name="consumergroup",
            name="streamed_read",
            field=models.BooleanField(db_default=False),
        ),
    ]
