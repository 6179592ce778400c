"""Up to which offset messages of a topic were collected. Processes of an older version write and read the other columns."""

from django.db import migrations, models

from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0038_deaths"),
    ]

    operations = [
        migrations.AddField(
            model_name="topic",
            name="collected_to",
            field=models.BigIntegerField(
                db_default=0, help_text="the highest offset that was collected", verbose_name="collected to"
            ),
        ),
    ]
