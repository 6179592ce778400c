"""An order to reschedule may be about the messages of one key."""

from django.db import migrations

import sqlqueue.database.fields
from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0012_by_hand"),
    ]

    operations = [
        migrations.AddField(
            model_name="rescheduling",
            name="partition_key",
            field=sqlqueue.database.fields.ExactField(
                db_default="", help_text="empty: any", max_length=255, verbose_name="key"
            ),
        ),
    ]
