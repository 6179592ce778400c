"""What waits for its way to another shard is found by topic, key and id."""

from django.db import migrations, models

from sqlqueue.database import online_migration


class Migration(online_migration.Migration):
    dependencies = [
        ("sqlqueue", "0029_shards"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="relayedmessage",
            index=models.Index(fields=["topic", "partition_key", "message_id"], name="sqlqueue_relayed_id"),
        ),
    ]
