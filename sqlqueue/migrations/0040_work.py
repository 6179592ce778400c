"""What a consumer process does of a group, in its heartbeat. Processes of an older version write and read the other
columns."""

from django.db import migrations, models

from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0039_collected_to"),
    ]

    operations = [
        migrations.AddField(
            model_name="subscriberheartbeat",
            name="runs_until",
            field=models.DateTimeField(
                help_text="the limit of what runs; empty: nothing runs", null=True, verbose_name="runs until"
            ),
        ),
        migrations.AddField(
            model_name="subscriberheartbeat",
            name="progressed_at",
            field=models.DateTimeField(
                help_text="when a message was settled, or the watermark moved", null=True, verbose_name="last progress"
            ),
        ),
    ]
