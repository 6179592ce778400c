"""A group remembers where a Spark stream's last batch was to end, so that a checkpoint from before a reset, or before a
restored backup, is known as one."""

from django.db import migrations, models

from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0007_every_character"),
    ]

    operations = [
        migrations.AddField(
            model_name="consumergroup",
            name="streamed_to",
            field=models.BigIntegerField(db_default=0, verbose_name="streamed to"),
        ),
    ]
