"""How a consumer process died, in its heartbeat. Processes of an older version write and read the other columns."""

from django.db import migrations, models

from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0037_streamed_read"),
    ]

    operations = [
        migrations.AddField(
            model_name="subscriberheartbeat",
            name="exit_status",
            field=models.SmallIntegerField(
                help_text="of a process that died; -9: signal 9", null=True, verbose_name="exit status"
            ),
        ),
        migrations.AddField(
            model_name="subscriberheartbeat",
            name="restart_at",
            field=models.DateTimeField(help_text="when a successor is started", null=True, verbose_name="successor at"),
        ),
    ]
