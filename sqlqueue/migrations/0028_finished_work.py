"""Work items that are done are found by an index once their retention is over."""

from django.db import migrations, models

from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0027_acked_mark"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="workitem",
            index=models.Index(fields=["finished_at"], name="sqlqueue_work_item_finished"),
        ),
    ]
